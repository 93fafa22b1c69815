//! `gpufleet doctor [TARGET]...`: checks the connection to each host step by step. With `--unattended` it refuses prompts, as
//! the collector does, and names those that a login needs.

use super::CommandError;
use super::command_context::CommandContext;
use super::one_shot::for_each_host;
use crate::collect::{CheckStep, check_connection};
use crate::ssh::{RefusedPrompt, SshPhase, TraceDetail, TraceEvent};
use crate::wire::SafeText;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Trace events by host.
#[derive(Default)]
struct TraceLog {
    receiver: Option<UnboundedReceiver<TraceEvent>>,
    by_host: HashMap<String, HostTrace>,
}

/// The trace of one host.
#[derive(Default)]
struct HostTrace {
    lines: Vec<(SshPhase, String)>,
    /// The prompts that were refused, each once.
    prompts: Vec<RefusedPrompt>,
    /// The socket of the agent whose key was used.
    agent: Option<PathBuf>,
}

/// Checks every host and prints the steps, with a hint for the first one that fails.
pub async fn run(
    setup: CommandContext,
    trace_events: UnboundedReceiver<TraceEvent>,
    is_unattended: bool,
) -> Result<ExitCode, CommandError> {
    let trace_log = Arc::new(Mutex::new(TraceLog { receiver: Some(trace_events), by_host: HashMap::new() }));
    for_each_host(setup, "doctor", move |ssh, host| {
        let trace_log = Arc::clone(&trace_log);
        async move {
            let name = host.name.to_string();
            let mut trace = HostTrace::default();
            let steps = check_connection(ssh, &host, || {
                trace = drain_trace(&trace_log, &name);
                std::mem::take(&mut trace.lines)
            })
            .await;
            let mut text = report(&host.name, &steps);
            if is_unattended {
                text += &unattended(&steps, &trace);
            }
            if steps.iter().any(|step| step.error.is_some()) { Err(text) } else { Ok(text) }
        }
    })
    .await
}

/// Returns the trace events of this host since the last call.
fn drain_trace(trace_log: &Mutex<TraceLog>, host: &str) -> HostTrace {
    let mut trace_log = trace_log.lock().unwrap_or_else(PoisonError::into_inner);
    let TraceLog { receiver, by_host } = &mut *trace_log;
    while let Some(Ok(event)) = receiver.as_mut().map(UnboundedReceiver::try_recv) {
        let trace = by_host.entry(event.host).or_default();
        match event.detail {
            TraceDetail::Text(text) => trace.lines.push((event.phase, text)),
            TraceDetail::RefusedPrompt(prompt) if trace.prompts.contains(&prompt) => {}
            TraceDetail::RefusedPrompt(prompt) => trace.prompts.push(prompt),
            TraceDetail::AgentKey(socket) => trace.agent = Some(socket),
        }
    }
    by_host.remove(host).unwrap_or_default()
}

/// ```text
/// hgx-01
///   ok    configuration    5.1 ms  alice@hgx-01.lab port 22, built-in client
///   FAIL  TCP                 5 s  no answer from 10.0.0.1 port 22 within 5 s
///                                  hint: the host is down, ...
/// ```
fn report(host: &SafeText, steps: &[CheckStep]) -> String {
    let mut text = format!("{host}\n");
    for step in steps {
        let word = if step.error.is_some() { "FAIL" } else { "ok" };
        let mut lines: Vec<String> = step.lines.iter().map(ToString::to_string).collect();
        if let Some(error) = &step.error {
            lines.push(error.message.to_string());
            lines.extend(error.hint.as_ref().map(|hint| format!("hint: {hint}")));
        }
        write_step(&mut text, word, step.name, &took(step.took), lines);
    }
    text
}

fn write_step(text: &mut String, word: &str, name: &str, took: &str, lines: impl IntoIterator<Item = String>) {
    let mut lines = lines.into_iter();
    let first = lines.next().unwrap_or_default();
    let line = format!("  {word:<4}  {name:<15} {took:>8}  {first}");
    let _ = writeln!(text, "{}", line.trim_end());
    for line in lines {
        let _ = writeln!(text, "{:34}{line}", "");
    }
}

/// The prompts that a collector cannot answer, and the way out of each.
///
/// ```text
///   ASK   passphrase                  /home/ann/.ssh/id_ed25519
///                                     hint: ...
/// ```
fn unattended(steps: &[CheckStep], trace: &HostTrace) -> String {
    let mut text = String::new();
    // A key with a passphrase is skipped, and another key may have logged in.
    let has_failed = steps.iter().any(|step| step.error.is_some());
    for prompt in trace.prompts.iter().filter(|_| has_failed) {
        let (name, subject, hint) = match prompt {
            RefusedPrompt::HostKey { target, fingerprint } => (
                "host key",
                format!("whether to trust {fingerprint} of {target}"),
                "accept it once with the command above, then check again: the login may ask as well",
            ),
            RefusedPrompt::Passphrase { path } => (
                "passphrase",
                path.clone(),
                "use a key without a passphrase (`identity_file` in hosts.toml), or an agent that runs without you",
            ),
            RefusedPrompt::Password { login } => (
                "password",
                format!("of {login}"),
                "let a key log in: `ssh-copy-id`, and `identity_file` in hosts.toml",
            ),
            RefusedPrompt::KeyboardInteractive { login } => (
                "questions",
                format!("to {login}, for example for a one-time code"),
                "let a key alone log in to this account; the administrator of the host decides that",
            ),
        };
        let lines = [subject, format!("hint: {hint}")];
        write_step(&mut text, "ASK", name, "", lines.map(|line| SafeText::from(line).to_string()));
    }
    if !has_failed {
        let mut lines = vec!["nothing asks for an answer".to_owned()];
        if let Some(socket) = &trace.agent {
            lines.push(format!("the key is in the agent {}", SafeText::new(&socket.to_string_lossy())));
            lines.push("hint: the collector needs this agent too, also when you are logged out".to_owned());
        }
        write_step(&mut text, "ok", "unattended", "", lines);
    }
    text
}

/// Formats a duration with about three digits.
fn took(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1e3;
    match milliseconds {
        ..10.0 => format!("{milliseconds:.1} ms"),
        ..1000.0 => format!("{milliseconds:.0} ms"),
        _ => format!("{:.1} s", milliseconds / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{LinkError, LinkErrorKind};

    #[test]
    fn the_report_has_columns_and_a_hint_for_the_failed_step() {
        let step = |name, lines: &[&str], milliseconds, error| CheckStep {
            name,
            lines: lines.iter().map(|line| SafeText::new(line)).collect(),
            took: Duration::from_millis(milliseconds),
            error,
        };
        let error = LinkError::new(LinkErrorKind::Timeout, "no answer within 5 s").with_hint("is it up?");
        let steps = [
            step("configuration", &["alice@hgx-01 port 22"], 5, None),
            step("name", &["10.0.0.1", "10.0.0.2"], 120, None),
            step("TCP", &[], 5000, Some(error)),
        ];
        assert_eq!(
            report(&"hgx-01".into(), &steps),
            "hgx-01\n  ok    configuration     5.0 ms  alice@hgx-01 port 22\n  ok    name              120 ms  10.0.0.1\n\
             \x20                                 10.0.0.2\n  FAIL  TCP                5.0 s  no answer within 5 s\n\
             \x20                                 hint: is it up?\n"
        );
    }

    #[test]
    fn each_refused_prompt_is_named_with_the_way_out() {
        let failed = CheckStep {
            name: "login",
            lines: Vec::new(),
            took: Duration::ZERO,
            error: Some(LinkError::new(LinkErrorKind::Authentication, "refused")),
        };
        let login = || "ann@hgx-01".to_owned();
        let trace = HostTrace {
            prompts: vec![
                RefusedPrompt::HostKey { target: "hgx-01 port 22".to_owned(), fingerprint: "SHA256:abc".to_owned() },
                RefusedPrompt::Passphrase { path: "/home/ann/.ssh/id".to_owned() },
                RefusedPrompt::KeyboardInteractive { login: login() },
                RefusedPrompt::Password { login: login() },
            ],
            ..HostTrace::default()
        };
        assert_eq!(
            unattended(std::slice::from_ref(&failed), &trace),
            "\
\x20 ASK   host key                  whether to trust SHA256:abc of hgx-01 port 22
                                  hint: accept it once with the command above, then check again: the login may ask as well
  ASK   passphrase                /home/ann/.ssh/id
                                  hint: use a key without a passphrase (`identity_file` in hosts.toml), or an agent that runs without you
  ASK   questions                 to ann@hgx-01, for example for a one-time code
                                  hint: let a key alone log in to this account; the administrator of the host decides that
  ASK   password                  of ann@hgx-01
                                  hint: let a key log in: `ssh-copy-id`, and `identity_file` in hosts.toml
"
        );
        let passed = CheckStep { error: None, ..failed };
        assert_eq!(
            unattended(&[passed], &HostTrace { agent: Some("/run/agent".into()), ..trace }),
            "\
\x20 ok    unattended                nothing asks for an answer
                                  the key is in the agent /run/agent
                                  hint: the collector needs this agent too, also when you are logged out
"
        );
    }
}
