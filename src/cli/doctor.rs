//! `gpufleet doctor [TARGET]...`: checks the connection to each host step by step.

use super::CommandError;
use super::command_context::CommandContext;
use super::one_shot::for_each_host;
use crate::collect::{CheckStep, check_connection};
use crate::ssh::{SshPhase, TraceEvent};
use crate::wire::SafeText;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// Trace events by host.
#[derive(Default)]
struct TraceLog {
    receiver: Option<UnboundedReceiver<TraceEvent>>,
    by_host: HashMap<String, Vec<(SshPhase, String)>>,
}

/// Checks every host and prints the steps, with a hint for the first one that fails.
pub async fn run(setup: CommandContext, trace_events: UnboundedReceiver<TraceEvent>) -> Result<ExitCode, CommandError> {
    let trace_log = Arc::new(Mutex::new(TraceLog { receiver: Some(trace_events), by_host: HashMap::new() }));
    for_each_host(setup, "doctor", move |ssh, host| {
        let trace_log = Arc::clone(&trace_log);
        async move {
            let name = host.name.to_string();
            let steps = check_connection(ssh, &host, || drain_trace(&trace_log, &name)).await;
            let text = report(&host.name, &steps);
            if steps.iter().any(|step| step.error.is_some()) { Err(text) } else { Ok(text) }
        }
    })
    .await
}

/// Returns the trace events of this host since the last call.
fn drain_trace(trace_log: &Mutex<TraceLog>, host: &str) -> Vec<(SshPhase, String)> {
    let mut trace_log = trace_log.lock().unwrap_or_else(PoisonError::into_inner);
    let TraceLog { receiver, by_host } = &mut *trace_log;
    while let Some(Ok(event)) = receiver.as_mut().map(UnboundedReceiver::try_recv) {
        by_host.entry(event.host).or_default().push((event.phase, event.text));
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
        let mut lines = lines.into_iter();
        let first = lines.next().unwrap_or_default();
        let line = format!("  {word:<4}  {:<15} {:>8}  {first}", step.name, took(step.took));
        let _ = writeln!(text, "{}", line.trim_end());
        for line in lines {
            let _ = writeln!(text, "{:34}{line}", "");
        }
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
}
