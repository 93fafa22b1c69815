//! Minimal SSH servers and clients for `benches/scale`, all in one process.
//!
//! `servers serve` reads lines `ADDRESS:PORT BEHAVIOUR` and serves them until its input ends. It prints its host key. The
//! behaviours are `live` (accepts any key and runs commands in a real shell), `silent` (accepts connections and sends
//! nothing), `exchange` (sends its identification string, then nothing) and `authentication` (never answers an
//! authentication request).
//!
//! `servers connect KEY ADDRESS:PORT...` connects to all of them at once with plain russh, runs `true` on each, and prints
//! the seconds that this took: a lower bound for programs that use russh.

use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate, load_secret_key};
use russh::server::{Auth, Msg, PublicKeyOffer, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelMsg};
use std::collections::HashMap;
use std::error::Error;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--bench") {
        // `cargo bench` passes `--bench`: this program has nothing to time.
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Runtime::new();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| match arguments.first().map(String::as_str) {
        Some("serve") => runtime.block_on(serve()),
        Some("connect") if arguments.len() > 2 => runtime.block_on(connect(&arguments[1], &arguments[2..])),
        _ => Err("usage: servers serve, or servers connect KEY ADDRESS:PORT...".into()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("servers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// How a server behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Live,
    Silent,
    Exchange,
    Authentication,
}

async fn serve() -> Outcome {
    let key = PrivateKey::from(Ed25519Keypair::from_seed(&[42; 32]));
    println!("{}", key.public_key().to_openssh()?);
    let config = Arc::new(russh::server::Config { keys: vec![key], ..russh::server::Config::default() });
    let mut servers = JoinSet::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let Some((address, behaviour)) = line.split_once(' ') else {
            // The empty line after the last address: all servers listen.
            println!("ready");
            continue;
        };
        let behaviour = match behaviour {
            "live" => Behaviour::Live,
            "silent" => Behaviour::Silent,
            "exchange" => Behaviour::Exchange,
            "authentication" => Behaviour::Authentication,
            other => return Err(format!("unknown behaviour '{other}'").into()),
        };
        let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
        servers.spawn(listen(listener, behaviour, Arc::clone(&config)));
    }
    Ok(())
}

async fn listen(listener: TcpListener, behaviour: Behaviour, config: Arc<russh::server::Config>) {
    let mut sessions = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let config = Arc::clone(&config);
        sessions.spawn(async move {
            // The client decides how a session ends.
            let _ = session(stream, behaviour, config).await;
        });
    }
}

async fn session(mut stream: TcpStream, behaviour: Behaviour, config: Arc<russh::server::Config>) -> Outcome {
    stream.set_nodelay(true)?;
    match behaviour {
        Behaviour::Silent | Behaviour::Exchange => {
            if behaviour == Behaviour::Exchange {
                stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await?;
            }
            // Discards all input until the client disconnects.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
        }
        Behaviour::Live | Behaviour::Authentication => {
            let account = Account { behaviour, channels: HashMap::new() };
            russh::server::run_stream(config, stream, account).await?.await?;
        }
    }
    Ok(())
}

struct Account {
    behaviour: Behaviour,
    channels: HashMap<ChannelId, Channel<Msg>>,
}

impl russh::server::Handler for Account {
    type Error = russh::Error;

    async fn auth_none(&mut self, _: &str) -> Result<Auth, russh::Error> {
        if self.behaviour == Behaviour::Authentication {
            std::future::pending::<()>().await;
        }
        Ok(Auth::reject())
    }

    async fn auth_publickey_offered(&mut self, _: &str, _: PublicKeyOffer<'_>) -> Result<Auth, russh::Error> {
        Ok(Auth::Accept)
    }

    async fn auth_publickey(&mut self, _: &str, _: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: russh::server::ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        self.channels.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(&mut self, id: ChannelId, command: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        session.channel_success(id)?;
        let Some(channel) = self.channels.remove(&id) else { return Ok(()) };
        let command = String::from_utf8_lossy(command).into_owned();
        tokio::spawn(async move {
            // If the shell does not start, the channel closes.
            let _ = shell(channel, &command).await;
        });
        Ok(())
    }
}

/// Runs a command with its input and output connected to a channel. Kills it when the client disconnects.
async fn shell(channel: Channel<Msg>, command: &str) -> Outcome {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (Some(mut input), Some(mut output)) = (child.stdin.take(), child.stdout.take()) else { return Ok(()) };
    let (mut reader, mut writer) = tokio::io::split(channel.into_stream());
    tokio::select! {
        copied = tokio::io::copy(&mut output, &mut writer) => {
            copied?;
            writer.shutdown().await?;
        }
        copied = tokio::io::copy(&mut reader, &mut input) => {
            copied?;
        }
    }
    Ok(())
}

struct AcceptAnyKey;

impl russh::client::Handler for AcceptAnyKey {
    type Error = russh::Error;

    /// Accepts any key: the servers run on loopback.
    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }
}

async fn connect(key: &str, addresses: &[String]) -> Outcome {
    let key = Arc::new(load_secret_key(key, None)?);
    let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
    let begin = Instant::now();
    let mut all = JoinSet::new();
    for address in addresses.iter().cloned() {
        all.spawn(connect_one(address, user.clone(), Arc::clone(&key)));
    }
    while let Some(done) = all.join_next().await {
        done??;
    }
    println!("{:.4}", begin.elapsed().as_secs_f64());
    Ok(())
}

async fn connect_one(address: String, user: String, key: Arc<PrivateKey>) -> Outcome {
    let config = russh::client::Config { nodelay: true, ..russh::client::Config::default() };
    let mut handle = russh::client::connect(Arc::new(config), address.as_str(), AcceptAnyKey).await?;
    if !handle.authenticate_publickey(user, PrivateKeyWithHashAlg::new(key, None)).await?.success() {
        return Err(format!("{address}: the server refused the key").into());
    }
    let mut channel = handle.channel_open_session().await?;
    channel.exec(true, "true").await?;
    while let Some(message) = channel.wait().await {
        if matches!(message, ChannelMsg::Close) {
            break;
        }
    }
    Ok(())
}
