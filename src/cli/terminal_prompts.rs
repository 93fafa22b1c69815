//! Prompts of a command without a screen: shown on the terminal one at a time, secrets without echo.

use crate::collect::HostUpdates;
use crate::fleet::{HostId, HostUpdate};
use crate::ssh::{Answer, Context, Prompt, PromptEvent, PromptId, PromptKind, Secret};
use crate::wire::SafeText;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use zeroize::{Zeroize as _, Zeroizing};

/// The maximum length of an answer in bytes, which is the line limit of a terminal.
const MAX_ANSWER_BYTES: usize = 4096;

/// Whether a user can read prompts and answer them: standard input and standard error are terminals.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// The open prompts; the first one is on the terminal.
pub struct TerminalPrompts {
    terminal: File,
    waiting: VecDeque<Prompt>,
    current: Option<OpenPrompt>,
    reader: LineReader,
    /// The total time for which earlier prompts were open.
    waited: Duration,
    /// The prompts whose host keys were saved.
    saved_keys: Vec<PromptKind>,
}

/// The prompt on the terminal.
struct OpenPrompt {
    prompt: Prompt,
    since: Instant,
    /// Turns the echo on again when the prompt is closed.
    _echo: Option<EchoOff>,
}

impl TerminalPrompts {
    /// Opens the terminal of this process.
    pub fn open() -> io::Result<Self> {
        let terminal = File::options().read(true).write(true).open("/dev/tty")?;
        let reader = LineReader::start(terminal.try_clone()?);
        Ok(Self {
            terminal,
            waiting: VecDeque::new(),
            current: None,
            reader,
            waited: Duration::ZERO,
            saved_keys: Vec::new(),
        })
    }

    /// Adds a prompt or withdraws one.
    pub fn take(&mut self, event: PromptEvent) {
        match event {
            PromptEvent::Opened(prompt) => self.add_prompt(prompt),
            PromptEvent::Withdrawn(id) => {
                self.waiting.retain(|prompt| prompt.id != id);
                if self.current.as_ref().is_some_and(|open_prompt| open_prompt.prompt.id == id) {
                    self.close("(no longer needed)\n");
                }
            }
        }
        self.show_next();
    }

    fn add_prompt(&mut self, prompt: Prompt) {
        let known = self.current.iter_mut().map(|open_prompt| &mut open_prompt.prompt).chain(&mut self.waiting);
        match known.into_iter().find(|known| known.id == prompt.id) {
            Some(known) => *known = prompt,
            None => self.waiting.push_back(prompt),
        }
    }

    /// Whether a prompt is on the terminal.
    pub fn is_open(&self) -> bool {
        self.current.is_some()
    }

    /// Returns the total time for which prompts were open.
    pub fn waited(&self) -> Duration {
        self.waited + self.current.as_ref().map(|open_prompt| open_prompt.since.elapsed()).unwrap_or_default()
    }

    /// Waits for the next answer. Cancel safe.
    pub async fn answer(&mut self) -> (PromptId, Answer) {
        loop {
            let line = self.reader.line().await;
            let Some(open_prompt) = &self.current else { continue };
            let id = open_prompt.prompt.id;
            let answer = line.map_or(Some(Answer::Decline), |line| parse_answer(&open_prompt.prompt.kind, line));
            if let Some(answer) = answer {
                if matches!(answer, Answer::TrustAndSave) {
                    self.saved_keys.push(open_prompt.prompt.kind.clone());
                }
                self.close("");
                self.show_next();
                return (id, answer);
            }
            self.write("Please answer yes, once or no: ");
            self.reader.read();
        }
    }

    fn show_next(&mut self) {
        if self.current.is_some() {
            return;
        }
        let Some(mut prompt) = self.waiting.pop_front() else { return };
        self.saved_keys.iter().for_each(|saved| prompt.kind.note_saved_key(saved));
        // Before the prompt is written, because input that follows it at once must be neither shown nor dropped.
        let echo = if echoes_input(&prompt.kind) { None } else { EchoOff::begin(&self.terminal) };
        self.write(&prompt_text(&prompt));
        self.current = Some(OpenPrompt { prompt, since: Instant::now(), _echo: echo });
        self.reader.read();
    }

    fn close(&mut self, words: &str) {
        if let Some(open_prompt) = self.current.take() {
            self.waited += open_prompt.since.elapsed();
            let is_silent = !echoes_input(&open_prompt.prompt.kind);
            drop(open_prompt);
            // The line break of the answer was not echoed.
            self.write(&format!("{}{words}", if is_silent { "\n" } else { "" }));
        }
    }

    fn write(&mut self, text: &str) {
        // If the terminal is gone, reading fails as well and declines the prompt.
        let _ = self.terminal.write_all(text.as_bytes()).and_then(|()| self.terminal.flush());
    }
}

fn echoes_input(kind: &PromptKind) -> bool {
    match kind {
        PromptKind::HostKey { .. } => true,
        PromptKind::Passphrase { .. } => false,
        PromptKind::Secret { echo, .. } => *echo,
    }
}

/// Returns the answer of a typed line, or `None` if the user must answer again.
fn parse_answer(kind: &PromptKind, line: Zeroizing<String>) -> Option<Answer> {
    if !matches!(kind, PromptKind::HostKey { .. }) {
        return Some(Answer::Secret(Secret::new(line)));
    }
    match line.trim().to_ascii_lowercase().as_str() {
        "yes" | "y" => Some(Answer::TrustAndSave),
        "once" | "o" => Some(Answer::TrustOnce),
        "no" | "n" => Some(Answer::Decline),
        _ => None,
    }
}

/// Returns the text of a prompt. Parts of it come from servers and are cleaned.
fn prompt_text(prompt: &Prompt) -> String {
    let hosts = match prompt.hosts.as_slice() {
        [] => String::new(),
        [host] => format!(" ({})", SafeText::new(host)),
        [first, others @ ..] => format!(" ({} and {} more)", SafeText::new(first), others.len()),
    };
    let again = |failures: u32| if failures > 0 { "Wrong answer. " } else { "" };
    match &prompt.kind {
        PromptKind::HostKey { target, key_type, fingerprint, known_hosts, also_known_as } => {
            let names: Vec<String> = also_known_as.iter().map(|name| SafeText::new(name).to_string()).collect();
            let also =
                if names.is_empty() { String::new() } else { format!("  also the key of {}\n", names.join(", ")) };
            format!(
                "The host key of {} is not known{hosts}.\n  {} {}\n{also}Trust it? \"yes\" adds it to {}, \"once\" does \
                 not [yes/once/no]: ",
                SafeText::new(target),
                SafeText::new(key_type),
                SafeText::new(fingerprint),
                SafeText::new(known_hosts),
            )
        }
        PromptKind::Passphrase { path, failures, .. } => {
            format!("{}Passphrase for {}{hosts}: ", again(*failures), SafeText::new(path))
        }
        PromptKind::Secret { text, instruction, failures, .. } => {
            let above = if instruction.trim().is_empty() { String::new() } else { format!("{}\n", lines(instruction)) };
            let text = SafeText::new(text.trim());
            let end = if text.ends_with([':', '?']) { "" } else { ":" };
            format!("{above}{}{text}{hosts}{end} ", again(*failures))
        }
    }
}

/// Cleans each line of a server's text.
fn lines(text: &str) -> String {
    let safe: Vec<String> = text.trim().lines().map(|line| SafeText::new(line).to_string()).collect();
    safe.join("\n")
}

/// Reads lines from the terminal on a thread, one per request. The thread lives as long as the process, because a
/// blocking read of a terminal cannot be interrupted.
struct LineReader {
    requests: mpsc::Sender<()>,
    lines: mpsc::Receiver<Option<Zeroizing<String>>>,
    /// A read is in progress, possibly for a prompt that was withdrawn.
    is_reading: bool,
}

impl LineReader {
    fn start(mut terminal: File) -> Self {
        let (requests, mut ordered) = mpsc::channel(1);
        let (sender, lines) = mpsc::channel(1);
        std::thread::spawn(move || {
            while let Some(()) = ordered.blocking_recv() {
                if sender.blocking_send(read_line(&mut terminal)).is_err() {
                    return;
                }
            }
        });
        Self { requests, lines, is_reading: false }
    }

    fn read(&mut self) {
        if !self.is_reading {
            self.is_reading = self.requests.try_send(()).is_ok();
        }
    }

    /// Returns the next line; `None` at the end of input. Pending forever while no read is in progress.
    async fn line(&mut self) -> Option<Zeroizing<String>> {
        if !self.is_reading {
            return std::future::pending().await;
        }
        let line = self.lines.recv().await;
        self.is_reading = false;
        line.flatten()
    }
}

/// Reads one line without its end; `None` at the end of input or on an error.
fn read_line(terminal: &mut File) -> Option<Zeroizing<String>> {
    let mut buffer = Zeroizing::new([0_u8; MAX_ANSWER_BYTES]);
    let mut length = 0;
    while length < MAX_ANSWER_BYTES && !buffer[..length].contains(&b'\n') {
        match terminal.read(&mut buffer[length..]) {
            Ok(0) | Err(_) => return None,
            Ok(count) => length += count,
        }
    }
    let mut text = String::from_utf8(buffer[..length].to_vec()).map_err(|error| error.into_bytes().zeroize()).ok()?;
    let end = text.trim_end_matches(['\r', '\n']).len();
    text.truncate(end);
    Some(Zeroizing::new(text))
}

/// Turns the echo of the terminal off until dropped.
struct EchoOff {
    terminal: File,
    before: Termios,
}

impl EchoOff {
    /// Turns the echo off and drops earlier input. `None` if the terminal is gone.
    fn begin(terminal: &File) -> Option<Self> {
        let terminal = terminal.try_clone().ok()?;
        let before = tcgetattr(&terminal).ok()?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        tcsetattr(&terminal, OptionalActions::Flush, &silent).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// Shows the prompts of all connections on the terminal while a command waits for its hosts.
pub(super) struct Prompter {
    /// `None` for a simulated fleet, which has no prompts.
    ssh: Option<(Arc<Context>, mpsc::Receiver<PromptEvent>)>,
    /// Opened by the first prompt.
    terminal_prompts: Option<TerminalPrompts>,
}

/// The result of [`Prompter::next_update`].
pub(super) enum NextUpdate {
    /// A host sent an update.
    Update(HostId, HostUpdate),
    /// The time is over.
    TimedOut,
    /// All host tasks have ended.
    Closed,
}

impl Prompter {
    /// Shows the prompts of these connections.
    pub(super) fn new(ssh: Option<(Arc<Context>, mpsc::Receiver<PromptEvent>)>) -> Self {
        Self { ssh, terminal_prompts: None }
    }

    /// Returns the connections, for another reader of their prompts.
    pub(super) fn into_ssh(self) -> Option<(Arc<Context>, mpsc::Receiver<PromptEvent>)> {
        self.ssh
    }

    /// Whether a prompt is open.
    pub(super) fn is_asking(&self) -> bool {
        self.terminal_prompts.as_ref().is_some_and(TerminalPrompts::is_open)
    }

    /// The end of a wait of `limit` since `began`, extended by the time in which prompts were open; `None` while one is
    /// open.
    pub(super) fn deadline(&self, began: Instant, limit: Duration) -> Option<Instant> {
        let waited = self.terminal_prompts.as_ref().map(TerminalPrompts::waited).unwrap_or_default();
        (!self.is_asking()).then(|| began + limit + waited)
    }

    /// Waits for the next update, at most until [`Prompter::deadline`], and handles prompts meanwhile. Cancel safe.
    pub(super) async fn next_update(
        &mut self,
        updates: &mut HostUpdates,
        began: Instant,
        limit: Option<Duration>,
    ) -> NextUpdate {
        loop {
            let deadline = limit.and_then(|limit| self.deadline(began, limit));
            tokio::select! {
                update = updates.recv() => {
                    return update.map_or(NextUpdate::Closed, |(id, update)| NextUpdate::Update(id, update));
                }
                () = self.step() => {}
                () = wait_until(deadline) => return NextUpdate::TimedOut,
            }
        }
    }

    /// Waits for one prompt or one answer; forever if there are no connections. Cancel safe.
    pub(super) async fn step(&mut self) {
        let Some((context, prompts)) = &mut self.ssh else { return std::future::pending().await };
        let Some(terminal_prompts) = &mut self.terminal_prompts else {
            let Some(event) = prompts.recv().await else { return std::future::pending().await };
            match (TerminalPrompts::open(), event) {
                (Ok(terminal_prompts), event) => self.terminal_prompts.insert(terminal_prompts).take(event),
                // The terminal is gone, so nobody can answer.
                (Err(_), PromptEvent::Opened(prompt)) => context.answer(prompt.id, Answer::Decline),
                (Err(_), PromptEvent::Withdrawn(_)) => {}
            }
            return;
        };
        tokio::select! {
            Some(event) = prompts.recv() => terminal_prompts.take(event),
            (id, answer) = terminal_prompts.answer() => context.answer(id, answer),
        }
    }
}

/// Waits until `deadline`; forever if it is `None`.
pub(super) async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(hosts: &[&str], kind: PromptKind) -> Prompt {
        Prompt { id: PromptId(1), hosts: hosts.iter().map(|host| (*host).to_owned()).collect(), kind }
    }

    fn host_key() -> PromptKind {
        PromptKind::HostKey {
            target: "gpu1 [10.0.0.1]:22".to_owned(),
            key_type: "ssh-ed25519".to_owned(),
            fingerprint: "SHA256:abc".to_owned(),
            known_hosts: "~/.ssh/known_hosts".to_owned(),
            also_known_as: vec!["gpu2".to_owned()],
        }
    }

    #[test]
    fn prompts_name_their_subject() {
        assert_eq!(
            prompt_text(&prompt(&["gpu1"], host_key())),
            "The host key of gpu1 [10.0.0.1]:22 is not known (gpu1).\n  ssh-ed25519 SHA256:abc\n  also the key of gpu2\n\
             Trust it? \"yes\" adds it to ~/.ssh/known_hosts, \"once\" does not [yes/once/no]: "
        );
        let passphrase = PromptKind::Passphrase { path: "/k".to_owned(), fingerprint: None, failures: 1 };
        assert_eq!(
            prompt_text(&prompt(&["a", "b", "c"], passphrase)),
            "Wrong answer. Passphrase for /k (a and 2 more): "
        );
    }

    #[test]
    fn text_of_a_server_cannot_contain_escape_sequences() {
        let secret = PromptKind::Secret {
            text: "Code\x1b[2J".to_owned(),
            instruction: "one\r\n\x1b]0;two\x07".to_owned(),
            echo: true,
            failures: 0,
        };
        assert_eq!(prompt_text(&prompt(&["a"], secret)), "one\n␛]0;two␇\nCode␛[2J (a): ");
    }

    #[test]
    fn only_explicit_answers_trust_a_key() {
        let answer = |line: &str| format!("{:?}", parse_answer(&host_key(), Zeroizing::new(line.to_owned())));
        assert_eq!(answer("yes"), "Some(TrustAndSave)");
        assert_eq!(answer(" Once "), "Some(TrustOnce)");
        assert_eq!(answer("no"), "Some(Decline)");
        assert_eq!(answer(""), "None");
        assert_eq!(answer("sure"), "None");
    }

    #[test]
    fn secrets_are_not_trimmed() {
        let kind = PromptKind::Passphrase { path: "/k".to_owned(), fingerprint: None, failures: 0 };
        let Some(Answer::Secret(secret)) = parse_answer(&kind, Zeroizing::new(" no ".to_owned())) else {
            panic!("a secret");
        };
        assert_eq!(secret.expose(), " no ");
    }
}
