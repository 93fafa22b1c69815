//! Runs the scripts in the real shells of this machine, each test with its own home directory.

use super::*;
use crate::collect::remote_command::RemoteCommand;
use crate::ssh::transport::{Channel, Exit};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::timeout;

const NONCE: &str = "00112233445566778899aabbccddeeff";
const NAME: &str = "gpufleet-probe-0.1.0-0123456789abcdef";
/// Stands in for the probe: prints its arguments and the loader variables, then waits for the end of its input.
const STAND_IN: &str =
    "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho \"$0|$*|${LD_LIBRARY_PATH-unset}|$PWD\"\ncat\n";

/// A home directory with its shell, and how often the bytes of the probe were loaded.
struct TestHome {
    root: TempDir,
    uploads: Arc<AtomicU32>,
    bytes: Vec<u8>,
}

struct OneProbe(Option<ProbeBinary>);

impl ProbeStore for OneProbe {
    fn binary(&self, _machine: &str) -> Option<ProbeBinary> {
        self.0.clone()
    }
    fn machines(&self) -> Vec<String> {
        vec!["aarch64".to_owned(), "x86_64".to_owned()]
    }
}

impl TestHome {
    fn new() -> Self {
        let home = Self {
            root: tempfile::tempdir().unwrap(),
            uploads: Arc::default(),
            bytes: [STAND_IN.as_bytes(), &b"#\n".repeat(60_000)].concat(),
        };
        for (name, mode) in [("home", 0o700), ("run", 0o700), ("tmp", 0o1777)] {
            fs::create_dir(home.at(name)).unwrap();
            fs::set_permissions(home.at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        home
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().canonicalize().unwrap().join(path)
    }

    fn cached(&self) -> PathBuf {
        self.at("home/.cache/gpufleet").join(NAME)
    }

    fn binary(&self) -> ProbeBinary {
        let plain = ProbeBinary::from_bytes(NAME, self.bytes.clone());
        let uploads = Arc::clone(&self.uploads);
        let (sha256, size) = (plain.sha256.clone(), plain.size_bytes);
        ProbeBinary::new(NAME.to_owned(), sha256, size, move || {
            uploads.fetch_add(1, Ordering::Relaxed);
            plain.bytes()
        })
    }

    fn shell(&self, command: &[&str]) -> RemoteCommand {
        let mut shell = Command::new(command[0]);
        shell
            .args(&command[1..])
            .env("HOME", self.at("home"))
            .env("XDG_RUNTIME_DIR", self.at("run"))
            .env("LD_LIBRARY_PATH", "/nonexistent")
            .env_remove("XDG_CACHE_HOME");
        if command.len() == 1 {
            // Shells follow POSIX more strictly under this name.
            shell.arg0("sh");
        }
        remote(shell)
    }

    /// Starts the probe and returns its first line.
    async fn start(&self, remote: &mut RemoteCommand, host: &HostConfig) -> Result<String, LinkError> {
        self.start_image(remote, host, Some(self.binary())).await
    }

    async fn start_image(
        &self,
        remote: &mut RemoteCommand,
        host: &HostConfig,
        binary: Option<ProbeBinary>,
    ) -> Result<String, LinkError> {
        let tmp = self.at("tmp");
        let request = InstallRequest {
            host,
            interval: Duration::from_millis(250),
            probes: &OneProbe(binary),
            nonce: NONCE,
            shared_directories: &[tmp.to_str().unwrap()],
            without_probe: None,
            on_event: &|_| {},
        };
        match timeout(Duration::from_secs(20), start(remote, &request)).await.expect("in time")? {
            Started::Probe => {}
            Started::Shell(why) => {
                let why = why.expect("the probe was asked for");
                assert_eq!(shell_reply(remote).await, "still here", "after: {}", why.message);
                return Err(why);
            }
        }
        let line = timeout(Duration::from_secs(10), remote.stdout.line()).await.expect("in time");
        Ok(String::from_utf8(line.unwrap().expect("a first line")).unwrap())
    }

    fn uploads(&self) -> u32 {
        self.uploads.load(Ordering::Relaxed)
    }
}

/// Returns the reply of a shell that remains after the script, which must still read commands.
async fn shell_reply(remote: &mut RemoteCommand) -> String {
    remote.stdin.write_all(b"echo still here\n").await.unwrap();
    let line = timeout(Duration::from_secs(10), remote.stdout.line()).await.expect("in time");
    String::from_utf8(line.unwrap().expect("an answer")).unwrap()
}

fn remote(mut command: Command) -> RemoteCommand {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the shell starts");
    let (ended, exit) = oneshot::channel();
    let channel = Channel {
        stdin: Box::pin(child.stdin.take().unwrap()),
        stdout: Box::pin(child.stdout.take().unwrap()),
        stderr: Box::pin(child.stderr.take().unwrap()),
        exit,
        guard: Box::new(()),
    };
    tokio::spawn(async move {
        let status = child.wait().await.unwrap();
        let exit = match status.code() {
            Some(code) => Exit::Status(code as u32),
            None => Exit::Signal(status.signal().unwrap_or_default().to_string()),
        };
        let _ = ended.send(exit);
    });
    RemoteCommand::new(channel)
}

fn host() -> HostConfig {
    HostConfig { nvml_library: Some("/opt/it's here/lib.so".to_owned()), ..HostConfig::named("hgx-01") }
}

/// The POSIX shells of this machine. `/bin/sh` is usually `dash` or `bash`.
fn shells() -> Vec<Vec<&'static str>> {
    let known: [&[&str]; 5] = [&["dash"], &["bash"], &["busybox", "sh"], &["zsh"], &["mksh"]];
    let paths = std::env::var_os("PATH").unwrap();
    let installed = |name: &str| std::env::split_paths(&paths).any(|directory| directory.join(name).is_file());
    let found: Vec<_> = known.iter().filter(|shell| installed(shell[0])).map(|shell| shell.to_vec()).collect();
    assert!(!found.is_empty());
    found
}

fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_first_connection_uploads_and_the_second_does_not_under_every_shell() {
    for shell in shells() {
        let home = TestHome::new();
        for _ in 0..2 {
            let line = home.start(&mut home.shell(&shell), &host()).await.expect("starts");
            let path = home.cached();
            let directory = path.parent().unwrap().display();
            let expected = format!("./{NAME}|--interval 0.25 --nvml-library /opt/it's here/lib.so|unset|{directory}");
            assert_eq!(line, expected, "{shell:?}");
            assert_eq!(home.uploads(), 1, "{shell:?}");
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&home.cached()), mode(home.cached().parent().unwrap())), (0o700, 0o700), "{shell:?}");
        assert_eq!(entries(home.cached().parent().unwrap()), [NAME], "nothing else is left: {shell:?}");
    }
}

#[tokio::test]
async fn what_is_written_after_the_start_reaches_the_probe() {
    let home = TestHome::new();
    let mut remote = home.shell(&["sh"]);
    home.start(&mut remote, &host()).await.expect("starts");
    remote.stdin.write_all(b"heartbeat\n").await.unwrap();
    let line = timeout(Duration::from_secs(10), remote.stdout.line()).await.expect("in time").unwrap();
    assert_eq!(line.as_deref(), Some(b"heartbeat".as_slice()));
}

#[tokio::test]
async fn a_tampered_probe_and_a_planted_link_are_replaced() {
    for shell in shells() {
        let home = TestHome::new();
        home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        fs::write(home.cached(), "#!/bin/sh\necho owned\n").unwrap();
        let line = home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        assert!(line.contains("--interval"), "{shell:?}: {line}");
        assert_eq!(fs::read(home.cached()).unwrap(), home.bytes, "{shell:?}");

        fs::rename(home.cached(), home.at("elsewhere")).unwrap();
        symlink(home.at("elsewhere"), home.cached()).unwrap();
        home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        assert!(fs::symlink_metadata(home.cached()).unwrap().is_file(), "{shell:?}");
        assert_eq!(home.uploads(), 3, "{shell:?}");
    }
}

#[tokio::test]
async fn a_directory_that_is_a_link_or_open_to_others_is_passed_over() {
    for shell in shells() {
        let home = TestHome::new();
        fs::create_dir_all(home.at("home/.cache")).unwrap();
        symlink(home.at("tmp"), home.at("home/.cache/gpufleet")).unwrap();
        fs::set_permissions(home.at("run"), fs::Permissions::from_mode(0o777)).unwrap();
        let line = home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        assert!(line.contains(&format!("|{}/gpufleet-", home.at("tmp").display())), "{shell:?}: {line}");
        // The directory with the random name is reused.
        let again = home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        assert_eq!((again, home.uploads()), (line, 1), "{shell:?}");
    }
}

#[tokio::test]
async fn a_home_that_cannot_be_written_leads_to_the_next_directory() {
    for shell in shells() {
        let home = TestHome::new();
        fs::remove_dir(home.at("home")).unwrap();
        fs::write(home.at("home"), "in the way").unwrap();
        let line = home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        assert!(line.ends_with(&format!("|{}", home.at("run/gpufleet").display())), "{shell:?}: {line}");
    }
}

#[tokio::test]
async fn when_no_directory_will_do_each_is_named_with_its_reason() {
    for shell in shells() {
        let home = TestHome::new();
        fs::remove_dir(home.at("home")).unwrap();
        fs::write(home.at("home"), "in the way").unwrap();
        fs::set_permissions(home.at("run"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::remove_dir(home.at("tmp")).unwrap();
        let error = home.start(&mut home.shell(&shell), &host()).await.expect_err("nowhere");
        assert_eq!(error.kind, LinkErrorKind::NoDirectory);
        let at = |path: &str| home.at(path).display().to_string();
        let beginning = format!(
            "no directory for the probe: {}: Not a directory; {}: everybody may write to {}; {}: ",
            at("home/.cache/gpufleet"),
            at("run/gpufleet"),
            at("run"),
            at("tmp"),
        );
        assert!(error.message.starts_with(&beginning), "{shell:?}: {}", error.message);
        assert!(error.message.ends_with("No such file or directory"), "{shell:?}: {}", error.message);
    }
}

#[tokio::test]
async fn versions_beyond_the_newest_two_are_removed() {
    for shell in shells() {
        let home = TestHome::new();
        let cache = home.at("home/.cache/gpufleet");
        fs::create_dir_all(&cache).unwrap();
        let name = |version: u32| format!("gpufleet-probe-0.0.{version}-fedcba9876543210");
        for (version, age_seconds) in [(1, 300), (3, 100), (2, 200)] {
            let file = fs::File::create(cache.join(name(version))).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age_seconds)).unwrap();
        }
        home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        assert_eq!(entries(&cache), [&name(3), NAME], "{shell:?}");
    }
}

#[tokio::test]
async fn other_files_in_the_directory_are_kept() {
    for shell in shells() {
        let home = TestHome::new();
        let cache = home.at("home/.cache/gpufleet");
        fs::create_dir_all(&cache).unwrap();
        let mut expected = vec![
            NAME.to_owned(),
            // One older probe is kept.
            "gpufleet-probe-0.0.9-fedcba9876543210".to_owned(),
            "b".to_owned(),
            "important".to_owned(),
            "gpufleet-probe-1-a b important".to_owned(),
            "gpufleet-probe-1.0.0-abcdef\n01234567".to_owned(),
            "gpufleet-probe-notes".to_owned(),
            ".upload-notes".to_owned(),
        ];
        for name in &expected[1..] {
            let file = fs::File::create(cache.join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(7200)).unwrap();
        }
        fs::create_dir(cache.join("gpufleet-probe-0.0.8-fedcba9876543210")).unwrap();
        expected.push("gpufleet-probe-0.0.8-fedcba9876543210".to_owned());
        for (name, age_seconds) in
            [("ffffffffffffffffffffffffffffffff", 7200), ("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee", 60)]
        {
            let file = fs::File::create(cache.join(format!(".upload-{name}"))).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age_seconds)).unwrap();
        }
        // It may belong to an upload in progress.
        expected.push(".upload-eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee".to_owned());
        expected.sort();
        home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        assert_eq!(entries(&cache), expected, "{shell:?}");
    }
}

#[tokio::test]
async fn a_probe_that_is_replaced_after_the_check_is_not_run() {
    // The probe is asked for its version between the check and the start. It stands in for another member of the group
    // of ~/.cache, who puts another directory in place at that moment.
    let swap = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then\ncd \"$HOME/.cache\" && mv gpufleet aside && mkdir gpufleet && \
         printf '#!/bin/sh\\necho foreign\\n' >gpufleet/{NAME} && chmod 755 gpufleet/{NAME}\nexit\nfi\necho checked\ncat\n"
    );
    for shell in shells() {
        let home = TestHome::new();
        let binary = ProbeBinary::from_bytes(NAME, swap.clone().into_bytes());
        let line = home.start_image(&mut home.shell(&shell), &host(), Some(binary)).await.expect("starts");
        assert!(home.at("home/.cache/aside").is_dir(), "{shell:?}: the directory was swapped");
        assert_eq!(line, "checked", "{shell:?}");
    }
}

#[tokio::test]
async fn a_directory_below_one_that_a_group_may_write_to_is_skipped() {
    let root = rustix::process::getuid().is_root();
    for shell in shells() {
        let home = TestHome::new();
        let cache = home.at("home/.cache");
        fs::create_dir(&cache).unwrap();
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o770)).unwrap();
        if root {
            std::os::unix::fs::chown(&cache, Some(0), Some(12345)).unwrap();
            let line = home.start(&mut home.shell(&shell), &host()).await.expect("starts");
            assert!(line.ends_with(&format!("|{}", home.at("run/gpufleet").display())), "{shell:?}: {line}");
            // A group with the id of the user.
            std::os::unix::fs::chown(&cache, Some(0), Some(0)).unwrap();
            let line = home.start(&mut home.shell(&shell), &host()).await.expect("starts");
            assert!(line.ends_with(&format!("|{}", cache.join("gpufleet").display())), "{shell:?}: {line}");
        }
        // An access control list: rwx for the owner, user 12345, the mask; nothing for the group and others. See acl(5).
        let entries: [(u16, u16, u32); 5] =
            [(1, 7, u32::MAX), (2, 7, 12345), (4, 0, u32::MAX), (0x10, 7, u32::MAX), (0x20, 0, u32::MAX)];
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, mode, id) in entries {
            list.extend([tag.to_le_bytes(), mode.to_le_bytes()].concat());
            list.extend(id.to_le_bytes());
        }
        let set = rustix::fs::setxattr(&cache, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty());
        if set == Err(rustix::io::Errno::OPNOTSUPP) {
            continue;
        }
        set.unwrap();
        let line = home.start(&mut home.shell(&shell), &host()).await.expect("starts");
        assert!(line.ends_with(&format!("|{}", home.at("run/gpufleet").display())), "{shell:?}: {line}");
    }
}

#[tokio::test]
async fn the_path_of_the_account_may_be_empty_or_have_another_uname() {
    let home = TestHome::new();
    let foreign = home.at("home/uname");
    fs::write(&foreign, "#!/bin/sh\necho Plan9 mips\n").unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o755)).unwrap();
    for path in [String::new(), home.at("home").display().to_string()] {
        let mut remote = home.shell(&["/bin/sh", "-c", &format!("PATH={path}; export PATH; exec /bin/sh")]);
        home.start(&mut remote, &host()).await.unwrap_or_else(|error| panic!("PATH={path}: {error:?}"));
    }
}

#[tokio::test]
async fn noise_before_the_answers_is_skipped_up_to_a_limit() {
    let home = TestHome::new();
    let noisy = |lines: u32| format!("yes 'Welcome to hgx-01!' | head -n {lines}; printf 'no newline'; exec /bin/sh");
    let mut remote = home.shell(&["sh", "-c", &noisy(3000)]);
    home.start(&mut remote, &host()).await.expect("starts");
    let mut remote = home.shell(&["sh", "-c", &noisy(4000)]);
    let error = home.start(&mut remote, &host()).await.expect_err("too much");
    assert_eq!(error.message, "protocol violation: more than 64 KiB of output before an answer");
}

#[tokio::test]
async fn an_account_without_a_shell_says_so() {
    let home = TestHome::new();
    let mut remote = home.shell(&["sh", "-c", "echo 'This account is currently not available.'; exit 1"]);
    let error = home.start(&mut remote, &host()).await.expect_err("no shell");
    assert_eq!(
        (error.kind, &*error.message),
        (
            LinkErrorKind::Shell,
            "the account has no login shell (exit status 1: This account is currently not available.)"
        )
    );
}

#[tokio::test]
async fn a_named_probe_is_started_or_what_is_wrong_with_it_is_said() {
    for shell in shells() {
        let home = TestHome::new();
        let path = home.at("home/my 'own' probe");
        let name = path.to_str().unwrap();
        let host = HostConfig { probe: ProbeChoice::Path(name.to_owned()), ..host() };
        let refused = async || home.start(&mut home.shell(&shell), &host).await.expect_err("refused");
        assert_eq!(*refused().await.message, format!("there is no {name} on the host"));
        fs::write(&path, &home.bytes).unwrap();
        assert_eq!(*refused().await.message, format!("{name} on the host may not be executed"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let line = home.start(&mut home.shell(&shell), &host).await.expect("starts");
        assert!(line.starts_with(name) && line.ends_with("|/"), "{shell:?}: {line}");
        let host = HostConfig { probe: ProbeChoice::Path("~/my 'own' probe".to_owned()), ..host.clone() };
        home.start(&mut home.shell(&shell), &host).await.expect("starts from home");
        assert_eq!(home.uploads(), 0);
    }
}

#[tokio::test]
async fn a_machine_without_a_probe_is_named() {
    let home = TestHome::new();
    let error = home.start_image(&mut home.shell(&["sh"]), &host(), None).await.expect_err("no probe");
    let machine = std::env::consts::ARCH;
    let expected = format!("there is no probe for Linux on {machine}: this gpufleet has aarch64 and x86_64");
    assert_eq!((error.kind, &*error.message), (LinkErrorKind::NoProbe, &*expected));
}

#[tokio::test]
async fn a_probe_that_arrives_damaged_or_cannot_be_loaded_is_not_started() {
    let home = TestHome::new();
    let bytes = home.bytes.clone();
    let damaged = ProbeBinary::new(NAME.to_owned(), "0".repeat(64), bytes.len() as u64, move || Ok(bytes.clone()));
    let error = home.start_image(&mut home.shell(&["sh"]), &host(), Some(damaged)).await.expect_err("refused");
    assert_eq!(error.message, "the probe arrived damaged: its SHA-256 does not match");
    assert_eq!(entries(home.cached().parent().unwrap()), [""; 0], "nothing of it stays");

    let unloadable = ProbeBinary::from_bytes(NAME, b"#!/lib/ld-of-another-system.so.2\n".to_vec());
    let error = home.start_image(&mut home.shell(&["sh"]), &host(), Some(unloadable)).await.expect_err("refused");
    assert_eq!(
        (error.kind, &*error.message),
        (LinkErrorKind::NoProbe, "the probe does not start on this host: its loader is missing")
    );
}

#[tokio::test]
async fn a_probe_that_ends_with_an_error_when_asked_for_its_version_is_not_started() {
    for shell in shells() {
        let home = TestHome::new();
        let broken = ProbeBinary::from_bytes(NAME, b"#!/bin/sh\nexit 3\n".to_vec());
        let error = home.start_image(&mut home.shell(&shell), &host(), Some(broken)).await.expect_err("refused");
        let expected = "the probe does not start on this host (exit status 3)";
        assert_eq!((error.kind, &*error.message), (LinkErrorKind::NoProbe, expected), "{shell:?}");
    }
}

#[tokio::test]
async fn a_probe_that_failed_before_is_not_tried_again() {
    let home = TestHome::new();
    let mut remote = home.shell(&["sh"]);
    let why = LinkError::new(LinkErrorKind::NoProbe, "it did not start");
    let request = InstallRequest {
        host: &host(),
        interval: Duration::from_secs(2),
        probes: &OneProbe(Some(home.binary())),
        nonce: NONCE,
        shared_directories: &[],
        without_probe: Some(&why),
        on_event: &|_| {},
    };
    assert_eq!(start(&mut remote, &request).await.expect("a shell"), Started::Shell(Some(why.clone())));
    assert_eq!((shell_reply(&mut remote).await, home.uploads()), ("still here".to_owned(), 0));
}

/// A simulated host.
async fn scripted(answers: &'static [u8]) -> Result<Started, LinkError> {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move {
        theirs.write_all(answers).await.unwrap();
        let mut chunk = [0; 4096];
        // Echoes its input, like a forced `cat`.
        while let Ok(count @ 1..) = theirs.read(&mut chunk).await {
            if theirs.write_all(&chunk[..count]).await.is_err() {
                return;
            }
        }
    });
    let mut remote = RemoteCommand::new(crate::collect::remote_command::channel_from_stream(ours));
    let request = InstallRequest {
        host: &host(),
        interval: Duration::from_secs(2),
        probes: &OneProbe(Some(ProbeBinary::from_bytes(NAME, b"probe".to_vec()))),
        nonce: NONCE,
        shared_directories: &[],
        without_probe: None,
        on_event: &|_| {},
    };
    start(&mut remote, &request).await
}

#[tokio::test(start_paused = true)]
async fn an_echo_is_not_an_answer_and_every_step_has_its_deadline() {
    let error = scripted(b"").await.expect_err("nobody there");
    assert_eq!((error.kind, &*error.message), (LinkErrorKind::Timeout, "the remote shell did not answer within 10 s"));
    let error = scripted(b"00112233445566778899aabbccddeeff shell Linux x86_64\n").await.expect_err("stops there");
    assert_eq!(error.message, "the remote script did not answer within 10 s");
    let error = scripted(
        b"00112233445566778899aabbccddeeff shell Linux x86_64\n00112233445566778899aabbccddeeff try /home/a/.cache\n",
    )
    .await
    .expect_err("hangs there");
    assert_eq!(error.message, "the remote script hung at /home/a/.cache within 10 s");
    assert_eq!(error.hint.as_deref(), Some("perhaps a hung network file system"));
}

/// A simulated host that answers the marker, and then the script with these answers, one per `pause`, repeatedly.
async fn babbling(words: &'static [&'static str], pause: Duration) -> (LinkError, u32, Duration) {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move {
        theirs.write_all(format!("{NONCE} shell Linux x86_64\n").as_bytes()).await.unwrap();
        let (mut reads, mut writes) = tokio::io::split(theirs);
        tokio::spawn(async move {
            let mut chunk = [0; 4096];
            while matches!(reads.read(&mut chunk).await, Ok(1..)) {}
        });
        for word in words.iter().cycle() {
            tokio::time::sleep(pause).await;
            if writes.write_all(format!("{NONCE} {word}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    });
    let home = TestHome::new();
    let mut remote = RemoteCommand::new(crate::collect::remote_command::channel_from_stream(ours));
    let request = InstallRequest {
        host: &host(),
        interval: Duration::from_secs(2),
        probes: &OneProbe(Some(home.binary())),
        nonce: NONCE,
        shared_directories: &[],
        without_probe: None,
        on_event: &|_| {},
    };
    let began = Instant::now();
    let error = start(&mut remote, &request).await.expect_err("is left");
    (error, home.uploads(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_script_that_answers_without_end_is_left() {
    let moment = Duration::from_millis(1);
    let (error, ..) = babbling(&["skip /home/a: no"], moment).await;
    assert_eq!(error.message, "protocol violation: more than 16 answers of the remote script");
    let (error, uploads, _) = babbling(&["need"], moment).await;
    assert_eq!((&*error.message, uploads), ("protocol violation: unexpected answer of the remote script", 1));
    let (error, uploads, _) = babbling(&["try /home/a", "need"], moment).await;
    assert_eq!(
        (&*error.message, uploads),
        ("protocol violation: unexpected answer of the remote script", MOST_UPLOADS)
    );
    let (error, _, took) = babbling(&["try /home/a"], Duration::from_secs(9)).await;
    assert_eq!((&*error.message, took), ("the remote script did not finish within 30 s", SCRIPT_LIMIT));
}

#[tokio::test(start_paused = true)]
async fn another_system_than_linux_is_named() {
    let error = scripted(b"00112233445566778899aabbccddeeff shell Darwin arm64\n").await.expect_err("not Linux");
    assert_eq!(error.message, "the probe runs on Linux, this host is Darwin arm64");
    let error = scripted(b"00112233445566778899aabbccddeeff shell \n").await.expect_err("not known");
    assert_eq!(error.message, "`uname` cannot be run on the host, so its system is not known");
}

#[test]
fn a_missing_tool_is_named() {
    let error = refusal("tool", "sha256sum", &[], &host());
    assert_eq!(error.message, "the host has no `sha256sum`, so the probe cannot be installed and verified");
}
