//! Removes uploaded probes from a host, for `gpufleet clean`.

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

/// Time limit for the whole script, for example if the home directory hangs.
const LIMIT: Duration = Duration::from_secs(20);
/// Limit of output other than answers.
const NOISE_LIMIT_BYTES: usize = 64 * 1024;
/// Limit of reported files, far above what a host can have.
const MOST_PATHS: usize = 256;
/// World-writable directories in which probes may be installed.
const SHARED_DIRECTORIES: [&str; 2] = ["/tmp", "/dev/shm"];

/// The result of removing the probes of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Removed paths.
    pub removed: Vec<SafeText>,
    /// Paths that could not be removed.
    pub kept: Vec<SafeText>,
}

/// Removes the uploaded probes from a host. Running probes continue until their connection ends.
///
/// # Errors
/// If the host is unreachable or its shell does not answer.
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
        // The end of the answers names the cause of a broken pipe.
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
                    let text = "protocol violation: more than 64 KiB of output before an answer";
                    return Err(LinkError::new(LinkErrorKind::Protocol, text));
                }
                if !line.trim_ascii().is_empty() {
                    last = line;
                }
            }
        }
    }
    let text = format!("protocol violation: more than {MOST_PATHS} files reported");
    Err(LinkError::new(LinkErrorKind::Protocol, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    /// The host side of a script that reports files without end.
    #[tokio::test(start_paused = true)]
    async fn an_endless_list_of_files_is_an_error() {
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
        let error = run(&mut remote, &SHARED_DIRECTORIES).await.expect_err("an error");
        assert_eq!(error.message, "protocol violation: more than 256 files reported");
        drop(remote);
        host.await.unwrap();
    }
}
