//! A server with accounts of its own: a mount namespace in which `/etc/passwd`, `/etc/pam.d`, `/tmp` and the home
//! directories are this test's. Only root may make one.

use crate::sshd::Sshd;
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What an account finds as its home.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Home {
    /// A directory like any other.
    Usual,
    /// On a filesystem that is mounted with these options.
    Mounted(&'static str),
    /// There is none.
    Missing,
    /// On a filesystem that never answers.
    Hung,
    /// The same for `~/.cache` alone.
    HungCache,
}

/// An account. Its number is the place in the list.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) name: &'static str,
    pub(super) shell: &'static str,
    pub(super) home: Home,
    /// What sshd runs whatever is asked for.
    pub(super) forced: Option<&'static str>,
    /// Files of the home, and what is in them.
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

/// The first account's number; nobody else has it.
const FIRST_ID: u32 = 64_100;

/// A filesystem whose server never answers: what touches it waits.
const HANGS: &str = "\
import ctypes, os, signal, sys
device = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={device},rootmode=40000,user_id=0,group_id=0,allow_other'.encode()
if ctypes.CDLL(None, use_errno=True).mount(b'none', sys.argv[1].encode(), b'fuse', 0, options) != 0:
    sys.exit('mounting: ' + os.strerror(ctypes.get_errno()))
print('hangs', flush=True)
signal.pause()
";

/// The server and its accounts.
pub(super) struct Machine {
    pub(super) sshd: Sshd,
}

impl Machine {
    /// `tmp` are the options with which `/tmp` is mounted; `added` are lines for sshd.
    pub(super) fn start(accounts: &[Account], tmp: &str, added: &[&str]) -> Self {
        Self::start_with(accounts, tmp, added, |_| {})
    }

    /// The same with more in its folder: a `pam.d` there is the machine's.
    pub(super) fn start_with(accounts: &[Account], tmp: &str, added: &[&str], more: impl FnOnce(&Path)) -> Self {
        let mut configuration: Vec<String> = added.iter().map(|line| (*line).to_owned()).collect();
        // bash sources .bashrc for a command of sshd's at the outermost level only.
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

    /// The home of an account, as everybody sees it.
    pub(super) fn home(&self, account: &str) -> PathBuf {
        self.sshd.file("home").join(account)
    }

    /// A hosts.toml with a host for each account, named like it.
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

/// Makes what the accounts have, and returns what is to be mounted.
fn prepare(folder: &Path, accounts: &[Account], tmp: &str) -> String {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let at = folder.display();
    let mut passwd = fs::read_to_string("/etc/passwd").unwrap();
    // The folder stays where it is, though all else of /tmp is another.
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
            // Its first line says that the mount is there.
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
