//! The clipboard: copied text goes to the terminal (OSC 52) and also to a program or a file, because not every terminal
//! supports that.

use crate::app::CopiedText;
use crate::cli::exit::one_line;
use crate::store::{Directories, write_atomic};
use crate::wire::SafeText;
use base64ct::{Base64, Encoding as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The file name.
const NAME: &str = "copied.txt";
/// The maximum length of the text; terminals drop longer sequences.
const MAX_BYTES: usize = 8 * 1024;
/// How long to wait for a program or a disk.
const LIMIT: Duration = Duration::from_secs(2);

/// Programs that copy standard input to a clipboard, with the environment variable of their desktop.
const TOOLS: [(&str, &str, &[&str]); 3] = [
    ("WAYLAND_DISPLAY", "wl-copy", &[]),
    ("DISPLAY", "xclip", &["-selection", "clipboard"]),
    ("DISPLAY", "xsel", &["--clipboard", "--input"]),
];

/// Copies text and reports where it went.
#[derive(Debug)]
pub(super) struct Clipboard {
    tool: Option<Tool>,
    file: Option<PathBuf>,
    messages: mpsc::UnboundedReceiver<String>,
    message_sender: mpsc::UnboundedSender<String>,
    tasks: JoinSet<()>,
    /// Held during a write of the file.
    turn: Arc<Mutex<()>>,
}

type Tool = (PathBuf, &'static [&'static str]);

impl Clipboard {
    /// Looks for a clipboard program in `PATH`. The file is in the state directory, if there is one.
    pub(super) fn find(directories: Option<&Directories>, environment: &dyn Fn(&str) -> Option<String>) -> Self {
        let (message_sender, messages) = mpsc::unbounded_channel();
        let file = directories.and_then(|directories| directories.state().ok()).map(|state| state.join(NAME));
        Self { tool: tool(environment), file, messages, message_sender, tasks: JoinSet::new(), turn: Arc::default() }
    }

    /// Copies the text and returns the sequence for the terminal. [`Clipboard::next_message`] returns the result.
    pub(super) fn take(&mut self, copied: &CopiedText) -> String {
        let mut text = copied.text();
        while text.len() > MAX_BYTES {
            text.pop();
        }
        let sequence = sequence(&text);
        let (what, tool, file, message_sender) =
            (copied.what.clone(), self.tool.clone(), self.file.clone(), self.message_sender.clone());
        let turn = Arc::clone(&self.turn);
        self.tasks.spawn(async move {
            let destinations = deliver(&text, tool, file.as_deref(), &turn).await;
            // The receiver is gone when the program ends.
            let _sent = message_sender.send(format!("copied {what} ({destinations})"));
        });
        sequence
    }

    /// Waits for the result of a copy, as a message.
    pub(super) async fn next_message(&mut self) -> SafeText {
        while self.tasks.try_join_next().is_some() {}
        match self.messages.recv().await {
            Some(words) => SafeText::new(&words),
            // `self` holds a sender, so the channel stays open.
            None => std::future::pending().await,
        }
    }
}

/// Returns the OSC 52 sequence. Terminals pass it through ssh and tmux if their settings allow it.
fn sequence(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", Base64::encode_string(text.as_bytes()))
}

/// Copies the text to a program or a file and returns the destinations as text.
async fn deliver(text: &str, tool: Option<Tool>, file: Option<&Path>, turn: &Arc<Mutex<()>>) -> String {
    let mut destinations = "OSC 52".to_owned();
    if let Some((path, arguments)) = tool {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match pipe_to(text, &path, arguments).await {
            Ok(()) => return format!("{destinations}, {name}"),
            Err(why) => destinations = format!("{destinations}, not {name}: {why}"),
        }
    }
    let Some(file) = file else { return format!("{destinations}, if the terminal allows it") };
    match write(file, format!("{text}\n"), turn).await {
        Ok(()) => format!("{destinations}, and {}", file.display()),
        Err(why) => format!("{destinations}, {why}"),
    }
}

/// Writes the file on a blocking thread, one copy at a time.
async fn write(file: &Path, text: String, turn: &Arc<Mutex<()>>) -> Result<(), String> {
    let slow = || format!("not {}: the disk does not answer within {} s", file.display(), LIMIT.as_secs());
    let turn = timeout(LIMIT, Arc::clone(turn).lock_owned()).await.map_err(|_| slow())?;
    let path = file.to_owned();
    let writing = tokio::task::spawn_blocking(move || {
        // Held until the disk answers, also after the timeout.
        let _turn = turn;
        write_atomic(&path, text.as_bytes()).map_err(|error| error.to_string())
    });
    let written = timeout(LIMIT, writing).await.map_err(|_| slow())?.map_err(|error| error.to_string())?;
    written.map_err(|error| one_line(&error))
}

async fn pipe_to(text: &str, path: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(path);
    // The program stays in the background to serve the text, so it must not hold our output open.
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let work = async {
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(text.as_bytes()).await.map_err(|error| error.to_string())?;
        }
        let status = child.wait().await.map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(status.to_string()) }
    };
    match timeout(LIMIT, work).await {
        Ok(done) => done,
        Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
    }
}

/// Returns the first installed program for this desktop.
fn tool(environment: &dyn Fn(&str) -> Option<String>) -> Option<Tool> {
    let is_set = |name: &str| environment(name).is_some_and(|value| !value.is_empty());
    let mac = cfg!(target_os = "macos").then_some(("pbcopy", &[] as &[&str]));
    let others = TOOLS.iter().filter(|(variable, ..)| is_set(variable)).map(|(_, name, arguments)| (*name, *arguments));
    let path = environment("PATH").unwrap_or_default();
    mac.into_iter().chain(others).find_map(|(name, arguments)| {
        let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())?;
        Some((found, arguments))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_osc_52_sequence_cannot_be_ended_by_the_text() {
        assert_eq!(sequence("ssh hgx-01"), "\x1b]52;c;c3NoIGhneC0wMQ==\x07");
        let hostile = SafeText::new("\x07\x1b]0;x\x07");
        assert!(sequence(&hostile).strip_suffix('\x07').is_some_and(|rest| !rest[1..].contains(['\x07', '\x1b'])));
    }

    /// Creates an executable shell script.
    fn program(folder: &Path, name: &str, script: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("writes");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("is made a program");
        path
    }

    #[tokio::test]
    async fn a_program_is_preferred_to_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("state").join(NAME);
        let good = program(folder.path(), "wl-copy", &format!("cat > {}/pasted", folder.path().display()));
        assert_eq!(deliver("two\nlines", Some((good, &[])), Some(&file), &Arc::default()).await, "OSC 52, wl-copy");
        let pasted = std::fs::read_to_string(folder.path().join("pasted")).expect("was pasted");
        assert_eq!(pasted, "two\nlines");
        assert!(!file.exists());
        let bad = program(folder.path(), "xclip", "cat > /dev/null; exit 3");
        assert_eq!(
            deliver("text", Some((bad, &[])), Some(&file), &Arc::default()).await,
            format!("OSC 52, not xclip: exit status: 3, and {}", file.display())
        );
        assert_eq!(std::fs::read_to_string(&file).expect("is there"), "text\n");
        assert_eq!(std::fs::metadata(&file).expect("is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(deliver("text", None, None, &Arc::default()).await, "OSC 52, if the terminal allows it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_does_not_answer_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(NAME);
        let turn = Arc::<Mutex<()>>::default();
        // An earlier copy is still being written.
        let _held = turn.lock().await;
        let words = deliver("text", None, Some(&file), &turn).await;
        assert_eq!(words, format!("OSC 52, not {}: the disk does not answer within 2 s", file.display()));
        assert!(!file.exists());
    }

    #[test]
    fn a_program_is_used_only_on_its_desktop() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = program(folder.path(), "xclip", "");
        let with = |display: &'static str| {
            let folder = folder.path().display().to_string();
            tool(&move |name| match name {
                "PATH" => Some(folder.clone()),
                "DISPLAY" => Some(display.to_owned()),
                _ => None,
            })
        };
        assert_eq!(with(":0"), Some((path, &["-selection", "clipboard"] as &[&str])));
        assert!(cfg!(target_os = "macos") || with("").is_none());
    }
}
