//! Servers and clients of the plainest kind, for `benches/scale`, in one process.
//!
//! `servers serve` reads lines `ADDRESS:PORT WAY` and serves them until its input ends. The ways: `live` (lets in whoever
//! has the key, and runs what is asked for in a real shell), `silent` (takes a connection and says nothing), `exchange`
//! (says who it is, then nothing), `authentication` (answers no request to be let in). It prints its host key.
//!
//! `servers connect KEY ADDRESS:PORT...` connects to all of them at once with russh, as it comes, runs `true` on each, and
//! prints the seconds that all of it took: what no program on russh can do much better than.

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
        // As `cargo bench` starts it: there is nothing to time.
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
enum Way {
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
        let Some((address, way)) = line.split_once(' ') else {
            // An empty line after the last one: all of them listen.
            println!("ready");
            continue;
        };
        let way = match way {
            "live" => Way::Live,
            "silent" => Way::Silent,
            "exchange" => Way::Exchange,
            "authentication" => Way::Authentication,
            other => return Err(format!("there is no way '{other}'").into()),
        };
        let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
        servers.spawn(listen(listener, way, Arc::clone(&config)));
    }
    Ok(())
}

async fn listen(listener: TcpListener, way: Way, config: Arc<russh::server::Config>) {
    let mut sessions = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let config = Arc::clone(&config);
        sessions.spawn(async move {
            // How a session ends is the client's affair.
            let _ = session(stream, way, config).await;
        });
    }
}

async fn session(mut stream: TcpStream, way: Way, config: Arc<russh::server::Config>) -> Outcome {
    stream.set_nodelay(true)?;
    match way {
        Way::Silent | Way::Exchange => {
            if way == Way::Exchange {
                stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await?;
            }
            // What comes is taken and forgotten, until the client goes away.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
        }
        Way::Live | Way::Authentication => {
            let account = Account { way, channels: HashMap::new() };
            russh::server::run_stream(config, stream, account).await?.await?;
        }
    }
    Ok(())
}

struct Account {
    way: Way,
    channels: HashMap<ChannelId, Channel<Msg>>,
}

impl russh::server::Handler for Account {
    type Error = russh::Error;

    async fn auth_none(&mut self, _: &str) -> Result<Auth, russh::Error> {
        if self.way == Way::Authentication {
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
            // A shell that does not start ends the channel, as it should.
            let _ = shell(channel, &command).await;
        });
        Ok(())
    }
}

/// Runs a command between the two ends of a channel. It is killed when the client goes away.
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
        said = tokio::io::copy(&mut output, &mut writer) => {
            said?;
            writer.shutdown().await?;
        }
        heard = tokio::io::copy(&mut reader, &mut input) => {
            heard?;
        }
    }
    Ok(())
}

struct Trusting;

impl russh::client::Handler for Trusting {
    type Error = russh::Error;

    /// The servers are those of the lab, on loopback.
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
        all.spawn(one(address, user.clone(), Arc::clone(&key)));
    }
    while let Some(done) = all.join_next().await {
        done??;
    }
    println!("{:.4}", begin.elapsed().as_secs_f64());
    Ok(())
}

async fn one(address: String, user: String, key: Arc<PrivateKey>) -> Outcome {
    let config = russh::client::Config { nodelay: true, ..russh::client::Config::default() };
    let mut handle = russh::client::connect(Arc::new(config), address.as_str(), Trusting).await?;
    if !handle.authenticate_publickey(user, PrivateKeyWithHashAlg::new(key, None)).await?.success() {
        return Err(format!("{address}: the key was refused").into());
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
