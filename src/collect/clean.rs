//! Our probes removed from a host, for `gpufleet clean`.

use super::remote_command::OpenChannel;
use super::remote_command::RemoteCommand;
use super::{error, script};
use crate::config::HostConfig;
use crate::fleet::{LinkError, LinkErrorKind};
use crate::wire::SafeText;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout_at};

/// How long it may take; a hung home directory shows itself here.
const LIMIT: Duration = Duration::from_secs(20);
/// How much a host may print besides our script's answers.
const NOISE_LIMIT_BYTES: usize = 64 * 1024;
/// The most files that a host may name; no host keeps nearly as many of ours.
const MOST_PATHS: usize = 256;
/// Directories that belong to everybody, in which probes may have been put.
const SHARED_DIRECTORIES: [&str; 2] = ["/tmp", "/dev/shm"];

/// What became of the probes on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Paths that are gone now.
    pub removed: Vec<SafeText>,
    /// Paths that could not be removed.
    pub kept: Vec<SafeText>,
}

/// Removes our probes from a host. Those that run go on until their connection ends.
///
/// # Errors
/// Where the host cannot be reached, or its shell does not answer.
pub async fn clean(ssh: Arc<dyn OpenChannel>, host: &HostConfig) -> Result<Cleaned, LinkError> {
    clean_in(ssh, host, &SHARED_DIRECTORIES).await
}

async fn clean_in(
    ssh: Arc<dyn OpenChannel>,
    host: &HostConfig,
    shared_directories: &[&str],
) -> Result<Cleaned, LinkError> {
    let opened = ssh.open(host, script::EXEC, &|_| {}).await;
    let mut remote = RemoteCommand::new(opened.map_err(|error| error::from_ssh(&error))?);
    run(&mut remote, shared_directories).await
}

async fn run(remote: &mut RemoteCommand, shared_directories: &[&str]) -> Result<Cleaned, LinkError> {
    let nonce = script::new_nonce();
    let deadline = Instant::now() + LIMIT;
    let text = script::clean(&nonce, shared_directories);
    let sending = async {
        // A pipe that broke is told by the end of the answers, with its cause.
        if remote.stdin.write_all(text.as_bytes()).await.is_ok() {
            let _ = remote.stdin.flush().await;
        }
    };
    let late = || error::timeout("the remote script did not answer", LIMIT);
    timeout_at(deadline, sending).await.map_err(|_| late())?;
    let (mut cleaned, mut noise, mut last) = (Cleaned::default(), 0, Vec::new());
    while cleaned.removed.len() + cleaned.kept.len() <= MOST_PATHS {
        let line = match timeout_at(deadline, remote.stdout.line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => {
                return Err(error::no_shell(&remote.wait_for_end().await, &super::remote_command::last_line(&last)));
            }
            Ok(Err(error)) => return Err(error::protocol(&error)),
            Err(_) => return Err(late()),
        };
        let answer = std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix(&nonce)?.strip_prefix(' '));
        match answer.map(|answer| answer.split_once(' ').unwrap_or((answer, ""))) {
            Some(("removed", path)) => cleaned.removed.push(path.into()),
            Some(("kept", path)) => cleaned.kept.push(path.into()),
            Some(("done", _)) => return Ok(cleaned),
            _ => {
                noise += line.len() + 1;
                if noise > NOISE_LIMIT_BYTES {
                    let text = "protocol violation: more than 64 KiB of noise where an answer should be";
                    return Err(LinkError::new(LinkErrorKind::Protocol, text));
                }
                if !line.trim_ascii().is_empty() {
                    last = line;
                }
            }
        }
    }
    let text = format!("protocol violation: more than {MOST_PATHS} files of ours");
    Err(LinkError::new(LinkErrorKind::Protocol, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    /// A "host" whose script names files without end.
    #[tokio::test(start_paused = true)]
    async fn a_host_that_names_files_without_end_is_left() {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        let host = tokio::spawn(async move {
            let mut script = String::new();
            let mut chunk = [0; 4096];
            while !script.ends_with("main\n") {
                let count = theirs.read(&mut chunk).await.unwrap();
                script.push_str(&String::from_utf8_lossy(&chunk[..count]));
            }
            let nonce = script.split_once(" N=").unwrap().1.split_whitespace().next().unwrap().to_owned();
            while theirs.write_all(format!("{nonce} removed /tmp/x\n").as_bytes()).await.is_ok() {}
        });
        let mut remote = RemoteCommand::new(super::super::remote_command::channel_from_stream(ours));
        let error = run(&mut remote, &SHARED_DIRECTORIES).await.expect_err("is left");
        assert_eq!(error.message, "protocol violation: more than 256 files of ours");
        drop(remote);
        host.await.unwrap();
    }
}
