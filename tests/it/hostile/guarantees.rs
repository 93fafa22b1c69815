//! What no host can achieve: a connection with a wrong key, a probe that others can replace, a probe that outlives the
//! controller.

use super::{Attacker, Battle, host_section, script};
use crate::lab::{gpufleet, wait_gone};
use crate::pty::{Pty, signal};
use crate::sshd::{Sshd, lock_probe_in_tmp};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether the server has seen an attempt to log in, to run a command or to forward a connection.
fn was_approached(sshd: &Sshd) -> bool {
    ["Accepted", "Failed", "Postponed", "Starting session", "direct-tcpip"].iter().any(|word| sshd.log().contains(word))
}

#[test]
fn changed_host_key_stops_every_connection() {
    let folder = tempfile::tempdir().unwrap();
    let mut imposter = Sshd::start();
    imposter.change_host_keys();
    imposter.restart();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let jump = format!(
        "Host jump\n HostName {}\n Port {}\n IdentityFile {}\n UserKnownHostsFile {}\n",
        imposter.ip(),
        imposter.port(),
        imposter.client_key().display(),
        imposter.known_hosts().display()
    );
    // With `no`, ssh itself logs in to a host whose key has changed. It forwards for a jump host only if no password could
    // be asked for.
    let lax = " StrictHostKeyChecking no\n PasswordAuthentication no\n KbdInteractiveAuthentication no\n";
    let lax = write("lax", &format!("{jump}Host *\n{lax}"));
    for backend in ["native", "system"] {
        for (name, jump) in [("host", ""), ("behind", "proxy_jump = \"jump\"\n")] {
            let section = host_section(name, &imposter, &format!("backend = \"{backend}\"\n{jump}"));
            let hosts = write(&format!("{backend}-{name}.toml"), &section);
            for command in ["status", "free", "doctor", "clean"] {
                let output = gpufleet(&["--ssh-config", &lax, command, &hosts]);
                let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
                assert_ne!(output.status.code(), Some(0), "{backend} {name} {command}: {text}");
                assert!(!was_approached(&imposter), "{backend} {name} {command}: {text}\n{}", imposter.log());
            }
            // The remote shell runs `ssh` on the terminal.
            let mut pty = Pty::gpufleet((120, 40), &["--ssh-config", &lax, &hosts], &[("SSH_AUTH_SOCK", "")]);
            pty.wait("the refusal", |text| text.contains("NEEDS YOU") || text.contains("DOWN"));
            pty.keys("s");
            let shown = pty.wait_for("Press Enter to return to the screen.");
            assert!(shown.contains("Host key verification failed."), "{backend} {name}: {shown}");
            pty.keys("\r");
            pty.signal("TERM");
            pty.exit_code();
            assert!(!was_approached(&imposter), "{backend} {name}, remote shell:\n{}", imposter.log());
        }
    }
}

/// Prepares a directory.
type Prepare = fn(&Path);

/// Directories for a cache that others can write to or replace, each prepared below a folder that the test owns.
const OPEN_TO_OTHERS: [(&str, Prepare); 6] = [
    ("writable by everybody", |cache| set_mode(cache, 0o777)),
    ("sticky and writable by everybody", |cache| set_mode(cache, 0o1777)),
    ("below a directory writable by everybody", |cache| set_mode(cache.parent().unwrap(), 0o777)),
    ("below a directory writable by a foreign group", |cache| {
        let parent = cache.parent().unwrap();
        std::os::unix::fs::chown(parent, None, Some(65_533)).unwrap();
        set_mode(parent, 0o770);
    }),
    ("owned by another user", |cache| std::os::unix::fs::chown(cache, Some(65_533), None).unwrap()),
    ("a symbolic link", |cache| {
        let real = cache.with_file_name("real");
        fs::rename(cache, &real).unwrap();
        symlink(real, cache).unwrap();
    }),
];

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn probe_is_neither_uploaded_to_nor_run_from_a_directory_writable_by_others() {
    if !crate::lab::has_root() {
        return;
    }
    let _lock = lock_probe_in_tmp();
    // The name of the probe, and its bytes.
    let trusted = tempfile::tempdir().unwrap();
    let (sshd, path) = host_with_cache(&trusted.path().join("cache"));
    assert_eq!(gpufleet(&["status", &path]).status.code(), Some(0), "{}", sshd.log());
    let installed = entries(&trusted.path().join("cache/gpufleet")).pop().expect("the probe was installed");
    drop(sshd);

    for (name, open) in OPEN_TO_OTHERS {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("home/cache");
        let planted = cache.join("gpufleet");
        fs::create_dir_all(&planted).unwrap();
        set_mode(&planted, 0o700);
        // The right probe under the right name: only the directory is wrong. A hard link would change the inode.
        fs::copy(&installed, planted.join(installed.file_name().unwrap())).unwrap();
        open(&planted);
        let before = files(&planted);
        let (sshd, hosts) = host_with_cache(&cache);
        let mut pty = Pty::gpufleet((120, 40), &[&hosts], &[("SSH_AUTH_SOCK", "")]);
        pty.wait("its answer", |text| text.contains("live") || text.contains("NO GPU DATA") || text.contains("DOWN"));
        for pid in sshd.descendants() {
            let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { continue };
            if program.file_name() == installed.file_name() {
                assert_private(&program, name);
            }
        }
        pty.keys("q");
        pty.exit_code();
        assert_eq!(files(&planted), before, "{name}: nothing is written there");
        // Removes the probe from the directory that was used instead.
        gpufleet(&["clean", &hosts]);
    }
}

/// A server whose only cache for the probe is here, and a hosts.toml that names it.
fn host_with_cache(cache: &Path) -> (Sshd, String) {
    let home = cache.parent().unwrap();
    let environment = format!("SetEnv SHLVL=5 XDG_CACHE_HOME={} XDG_RUNTIME_DIR=/nonexistent", cache.display());
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&environment]);
    let hosts = home.join("hosts.toml");
    fs::write(&hosts, host_section("host", &sshd, "")).unwrap();
    (sshd, hosts.display().to_string())
}

/// Only the owner of the program, or root, can replace it or a directory above it.
#[track_caller]
fn assert_private(program: &Path, name: &str) {
    for path in program.ancestors() {
        let metadata = fs::symlink_metadata(path).unwrap();
        let is_open = metadata.mode() & 0o022 != 0 && metadata.mode() & 0o1000 == 0;
        assert!(
            !is_open && metadata.uid() == 0,
            "{name}: {} runs, and others can write to {}",
            program.display(),
            path.display()
        );
    }
}

/// Name, inode and time of the last change of each file.
fn files(folder: &Path) -> Vec<(PathBuf, u64, i64)> {
    let stat = |path: PathBuf| fs::metadata(&path).map(|found| (path, found.ino(), found.ctime_nsec())).unwrap();
    entries(folder).into_iter().map(stat).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

#[test]
fn killed_controller_leaves_no_probe_beside_a_flood() {
    for mode in ["flood", "endless-line"] {
        let battle = Battle::start(Attacker::Probe, mode);
        battle.pty.wait("both hosts", |text| text.contains("busy") && text.contains("2 hosts"));
        let honest = battle.honest_probe();
        let sessions = battle.sshd.descendants();
        assert!(sessions.contains(&honest));
        signal(battle.pty.pid(), "KILL");
        wait_gone(&sessions, Duration::from_secs(2));
    }
}

#[test]
fn recording_of_a_host_that_misbehaves_names_it_in_a_replay() {
    let folder = tempfile::tempdir().unwrap();
    let sshd = Sshd::start();
    let mut hosts = String::from("[defaults]\ninterval = \"500ms\"\n");
    for (name, mode) in [("floods", "flood"), ("escapes", "control-characters"), ("honest", "honest")] {
        let probe = script(folder.path(), name, &format!("exec {} {mode}", super::hostile_probe().display()));
        hosts += &host_section(name, &sshd, &format!("probe = \"{probe}\"\n"));
    }
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("hosts.toml"), hosts).unwrap();
    // Reading at the limit begins after a burst of four seconds.
    let recorded = gpufleet(&["record", &path("lab.jsonl"), "--for", "8", &path("hosts.toml")]);
    assert!(recorded.status.success(), "{recorded:?}");
    let replayed = gpufleet(&["findings", "--replay", &path("lab.jsonl")]);
    let named = String::from_utf8_lossy(&replayed.stderr).into_owned();
    assert!(named.contains("gpufleet: floods sends more than gpufleet reads: per second 8 snapshots"), "{named}");
    assert!(named.contains("gpufleet: escapes sends control characters in texts"), "{named}");
    assert!(!named.contains("honest"), "{named}");
}

#[test]
fn message_of_a_host_cannot_pose_as_the_answer_of_the_script() {
    // Without the nonce of the connection, a start-up file of the account cannot name a program to run.
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("ran");
    let planted = script(folder.path(), "planted", &format!("touch {}", marker.display()));
    let forged = format!("ForceCommand printf '\\n%032d exec {planted}\\n%032d need\\n' 0 0; exec /bin/sh");
    let sshd = Sshd::start_at(Ipv4Addr::LOCALHOST, &[&forged]);
    let hosts = folder.path().join("hosts.toml");
    fs::write(&hosts, host_section("host", &sshd, "probe = \"/nonexistent\"\n")).unwrap();
    let output = gpufleet(&["status", &hosts.display().to_string()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("there is no /nonexistent on the host"), "{text}");
    assert!(!marker.exists());
}
