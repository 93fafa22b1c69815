//! SSH servers for tests: an in-process russh server for passwords and keyboard-interactive questions, for which sshd
//! needs PAM, and an sshd with its own accounts.

use crate::sshd::Sshd;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::server::{Auth, Config, Handler, Msg, PublicKeyOffer, Response, Session};
use russh::{Channel, ChannelId, MethodKind, MethodSet};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The password of the account.
pub(crate) const PASSWORD: &str = "pass word of more than thirty characters";
/// The one-time code that the server requests after the password in [`LoginMethod::Questions`].
pub(crate) const CODE: &str = "424242";

/// How the server authenticates.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LoginMethod {
    Password,
    Questions,
    /// The method `none`, as Tailscale SSH uses.
    None,
    /// Refuses every login and shows a banner, as pam_slurm_adopt does.
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
    pub(crate) async fn start(method: LoginMethod) -> Self {
        let mut methods = MethodSet::empty();
        methods.push(match method {
            LoginMethod::Password => MethodKind::Password,
            LoginMethod::Questions => MethodKind::KeyboardInteractive,
            LoginMethod::None | LoginMethod::Never => MethodKind::PublicKey,
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
                    if let Ok(session) =
                        russh::server::run_stream(config, stream, LoginHandler { method, questions_asked: 0 }).await
                    {
                        let _ = session.await;
                    }
                });
            }
        });
        Self { port, accepting, connections }
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The known_hosts line of the server.
    pub(crate) fn known_hosts_line(&self) -> String {
        Self::known_hosts_line_at(self.port)
    }

    /// The known_hosts line for another port that forwards to the server.
    pub(crate) fn known_hosts_line_at(port: u16) -> String {
        format!("[127.0.0.1]:{port} {}\n", host_key().public_key().to_openssh().unwrap())
    }
}

fn host_key() -> PrivateKey {
    PrivateKey::from(Ed25519Keypair::from_seed(&[42; 32]))
}

struct LoginHandler {
    method: LoginMethod,
    /// The number of questions asked so far.
    questions_asked: u32,
}

/// Like sshd, lets the client try a failed method again.
fn refuse_password() -> Auth {
    let methods = MethodSet::from(&[MethodKind::Password][..]);
    Auth::Reject { proceed_with_methods: Some(methods), partial_success: false }
}

fn refuse() -> Auth {
    Auth::Reject { proceed_with_methods: None, partial_success: false }
}

impl Handler for LoginHandler {
    type Error = russh::Error;

    async fn authentication_banner(&mut self) -> Result<Option<String>, russh::Error> {
        Ok(matches!(self.method, LoginMethod::Never).then(|| "no job of yours runs here\n".to_owned()))
    }

    async fn auth_none(&mut self, _: &str) -> Result<Auth, russh::Error> {
        Ok(if matches!(self.method, LoginMethod::None) { Auth::Accept } else { refuse() })
    }

    async fn auth_publickey_offered(&mut self, _: &str, _: PublicKeyOffer<'_>) -> Result<Auth, russh::Error> {
        Ok(refuse())
    }

    async fn auth_password(&mut self, _: &str, password: &str) -> Result<Auth, russh::Error> {
        Ok(if matches!(self.method, LoginMethod::Password) && password == PASSWORD {
            Auth::Accept
        } else {
            refuse_password()
        })
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
        self.questions_asked += 1;
        Ok(match (self.questions_asked, &answers[..]) {
            (1, _) => question("Password: ", false),
            (2, [password]) if password == PASSWORD => question("Verification code: ", true),
            (3, [code]) if code == CODE => Auth::Accept,
            _ => {
                self.questions_asked = 0;
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

    /// Forwards connections, as a jump host does.
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

/// The state of an account's home directory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Home {
    /// An ordinary directory.
    Usual,
    /// On a filesystem that is mounted with these options.
    Mounted(&'static str),
    /// The directory does not exist.
    Missing,
    /// On a filesystem that never answers.
    Hung,
    /// Only `~/.cache` is on such a filesystem.
    HungCache,
}

/// An account. Its uid is [`FIRST_ID`] plus its index in the list.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) name: &'static str,
    pub(super) shell: &'static str,
    pub(super) home: Home,
    /// The ForceCommand of the account.
    pub(super) forced: Option<&'static str>,
    /// Names and contents of files in the home directory.
    pub(super) files: &'static [(&'static str, &'static str)],
}

impl Account {
    pub(super) const fn new(name: &'static str, shell: &'static str, home: Home) -> Self {
        Self { name, shell, home, forced: None, files: &[] }
    }

    pub(super) fn forced(self, command: &'static str) -> Self {
        Self { forced: Some(command), ..self }
    }

    pub(super) fn files(self, files: &'static [(&'static str, &'static str)]) -> Self {
        Self { files, ..self }
    }
}

/// The uid and gid of the first account; unused on the test server.
const FIRST_ID: u32 = 64_100;

/// A FUSE filesystem whose server never answers: every access blocks.
const HANGS: &str = "\
import ctypes, os, signal, sys
device = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={device},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
if ctypes.CDLL(None, use_errno=True).mount(b'none', sys.argv[1].encode(), b'fuse', 0, options) != 0:
    sys.exit('mounting: ' + os.strerror(ctypes.get_errno()))
print('hangs', flush=True)
signal.pause()
";

/// An sshd and its accounts.
pub(super) struct AccountServer {
    pub(super) sshd: Sshd,
}

impl AccountServer {
    /// `tmp` are the mount options of `/tmp`; `added` are lines of the sshd configuration.
    pub(super) fn start(accounts: &[Account], tmp: &str, added: &[&str]) -> Self {
        Self::start_with(accounts, tmp, added, |_| {})
    }

    /// Like [`Self::start`], but `more` can add files to the server's folder: a `pam.d` there replaces `/etc/pam.d`.
    pub(super) fn start_with(accounts: &[Account], tmp: &str, added: &[&str], more: impl FnOnce(&Path)) -> Self {
        let mut configuration: Vec<String> = added.iter().map(|line| (*line).to_owned()).collect();
        // bash reads .bashrc for a command of sshd only at the outermost shell level.
        configuration.push("SetEnv SHLVL=0".to_owned());
        for account in accounts {
            if let Some(command) = account.forced {
                configuration.push(format!("Match User {}\nForceCommand {command}", account.name));
            }
        }
        let configuration: Vec<&str> = configuration.iter().map(String::as_str).collect();
        let sshd = Sshd::start_in(Ipv4Addr::LOCALHOST, &configuration, |folder| {
            more(folder);
            Some(prepare(folder, accounts, tmp))
        });
        Self { sshd }
    }

    /// The home directory of an account, as seen outside of the mount namespace.
    pub(super) fn home(&self, account: &str) -> PathBuf {
        self.sshd.file("home").join(account)
    }

    /// Writes a hosts.toml with a host for each account, named like the account. Returns its path.
    pub(super) fn hosts_toml(&self, accounts: &[&str], added: &str) -> String {
        let mut text = String::new();
        for name in accounts {
            let _ = write!(
                text,
                "[[hosts]]\nname = \"{name}\"\naddress = \"127.0.0.1\"\nport = {}\nuser = \"{name}\"\nidentity_file \
                 = \"{}\"\nknown_hosts = \"{}\"\nnvml_library = \"/nonexistent/libnvidia-ml.so.1\"\n{added}\n",
                self.sshd.port(),
                self.sshd.client_key().display(),
                self.sshd.known_hosts().display()
            );
        }
        let path = self.sshd.file("hosts.toml");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

/// Creates the files of the accounts and returns the shell commands that mount them.
fn prepare(folder: &Path, accounts: &[Account], tmp: &str) -> String {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let at = folder.display();
    let mut passwd = fs::read_to_string("/etc/passwd").unwrap();
    // The server's folder keeps its path in the new /tmp.
    let mut mounts = format!(
        "mount --bind {at} /mnt\nmount -t tmpfs -o mode=1777,{tmp} tmp /tmp\nmkdir -p {at}\nmount --move /mnt {at}\n\
         mount --bind {at}/passwd /etc/passwd\n"
    );
    if folder.join("pam.d").exists() {
        let _ = writeln!(mounts, "mount --bind {at}/pam.d /etc/pam.d");
    }
    fs::write(folder.join("hangs.py"), HANGS).unwrap();
    for (id, account) in (FIRST_ID..).zip(accounts) {
        let home = folder.join("home").join(account.name);
        let _ = writeln!(passwd, "{}:x:{id}:{id}::{}:{}", account.name, home.display(), account.shell);
        if account.home == Home::Missing {
            continue;
        }
        fs::create_dir_all(&home).unwrap();
        for (name, text) in account.files {
            fs::write(home.join(name), text).unwrap();
        }
        let shown = home.display();
        let hang = |path: &str| {
            // The script prints a line once the filesystem is mounted.
            format!("python3 {at}/hangs.py {path} >{path}.says &\nuntil grep -q hangs {path}.says; do :; done\n")
        };
        match account.home {
            Home::Usual | Home::Missing => {}
            Home::Mounted(options) => {
                let _ = writeln!(mounts, "mount -t tmpfs -o {options},mode=700,uid={id},gid={id} home {shown}");
            }
            Home::Hung => mounts += &hang(&shown.to_string()),
            Home::HungCache => {
                fs::create_dir(home.join(".cache")).unwrap();
                mounts += &hang(&format!("{shown}/.cache"));
            }
        }
        for path in [home.clone(), home.join(".cache")].iter().filter(|path| path.exists()) {
            std::os::unix::fs::chown(path, Some(id), Some(id)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
    fs::write(folder.join("passwd"), passwd).unwrap();
    mounts
}
