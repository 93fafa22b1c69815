//! Helpers of the ssh tests: a context with prompts, a host configuration, and finished commands.

use crate::sshd::{Sshd, TIMEOUT};
use gpufleet::config::{Backend, HostConfig};
use gpufleet::ssh::{
    Answer, Channel, Context, Exit, Interaction, Options, Prompt, PromptEvent, PromptId, Secret, SshError, open,
};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

/// An SSH context that ignores the ssh configuration, keys and agent of the machine, with its prompts.
pub(super) struct Client {
    pub(super) context: Arc<Context>,
    pub(super) prompts: mpsc::Receiver<PromptEvent>,
    /// The home directory of the context.
    pub(super) home: TempDir,
}

/// A client that can answer prompts, or refuses them.
pub(super) fn client(interaction: Interaction) -> Client {
    client_with(interaction, |_| {})
}

/// A client with changed options.
pub(super) fn client_with(interaction: Interaction, change: impl FnOnce(&mut Options)) -> Client {
    let home = tempfile::tempdir().unwrap();
    let mut options = Options::from_environment(interaction);
    options.home = Some(home.path().to_owned());
    options.agent_socket = None;
    options.ssh_config = Some("/dev/null".into());
    options.helper_program = Some(env!("CARGO_BIN_EXE_gpufleet").into());
    change(&mut options);
    let (context, prompts) = Context::with_options(options);
    Client { context, prompts, home }
}

impl Client {
    pub(super) async fn open(&self, host: &HostConfig, command: &str) -> Result<Channel, SshError> {
        tokio::time::timeout(TIMEOUT, open(&self.context, host, command, &|_| {})).await.expect("open hangs")
    }

    /// Runs `command` to its end.
    pub(super) async fn run(&self, host: &HostConfig, command: &str) -> Result<Finished, SshError> {
        Ok(finish(self.open(host, command).await?).await)
    }

    /// Waits for the next prompt.
    pub(super) async fn next_prompt(&mut self) -> Prompt {
        let event = tokio::time::timeout(TIMEOUT, self.prompts.recv()).await.expect("no prompt came");
        match event.expect("the broker has gone") {
            PromptEvent::Opened(prompt) => prompt,
            PromptEvent::Withdrawn(id) => panic!("{id:?} was withdrawn"),
        }
    }

    /// Waits for the next prompt after `before` was withdrawn.
    pub(super) async fn next_prompt_after(&mut self, before: PromptId) -> Prompt {
        let event = tokio::time::timeout(TIMEOUT, self.prompts.recv()).await.expect("it was not withdrawn");
        assert_eq!(event, Some(PromptEvent::Withdrawn(before)));
        self.next_prompt().await
    }

    /// Starts `command` on `host` in a separate task, so that the test can answer prompts meanwhile.
    pub(super) fn spawn(
        &self,
        host: &HostConfig,
        command: &str,
    ) -> tokio::task::JoinHandle<Result<Finished, SshError>> {
        let (context, host, command) = (Arc::clone(&self.context), host.clone(), command.to_owned());
        tokio::spawn(async move {
            let login = open(&context, &host, &command, &|_| {});
            let channel = tokio::time::timeout(TIMEOUT, login).await.expect("open hangs")?;
            Ok(finish(channel).await)
        })
    }
}

/// A command that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) exit: Exit,
}

/// Reads a channel to its end.
pub(super) async fn finish(channel: Channel) -> Finished {
    let Channel { stdin, mut stdout, mut stderr, exit, guard } = channel;
    let (mut out, mut err) = (String::new(), String::new());
    let reading = async {
        let (read_out, read_err) = tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err));
        read_out.unwrap();
        read_err.unwrap();
        exit.await.expect("no exit was reported")
    };
    let exit = tokio::time::timeout(TIMEOUT, reading).await.expect("the command does not end");
    drop((stdin, guard));
    Finished { stdout: out, stderr: err, exit }
}

/// The configuration of `sshd` as a host: plain key, built-in client.
pub(super) fn host(sshd: &Sshd) -> HostConfig {
    let mut host = HostConfig::named("gpu01");
    host.address = Some(sshd.ip());
    host.port = Some(sshd.port());
    host.user = Some(sshd.user());
    host.identity_file = Some(sshd.client_key());
    host.known_hosts = Some(sshd.known_hosts());
    host.backend = Backend::Native;
    host
}

pub(super) fn secret(text: &str) -> Answer {
    Answer::Secret(Secret::new(text.to_owned().into()))
}
