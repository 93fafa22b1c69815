//! `gpufleet clean [TARGET]...`: removes the probes that gpufleet installed.

use super::CommandError;
use super::command_context::CommandContext;
use super::one_shot::for_each_host;
use crate::collect::{Cleaned, clean};
use crate::fleet::LinkError;
use crate::wire::SafeText;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Removes the probes and prints their paths.
pub async fn run(setup: CommandContext) -> Result<ExitCode, CommandError> {
    for_each_host(setup, "clean", |ssh, host| async move { report(&host.name, clean(ssh, &host).await) }).await
}

fn report(host: &SafeText, outcome: Result<Cleaned, LinkError>) -> Result<String, String> {
    let mut text = String::new();
    match outcome {
        Ok(cleaned) => {
            for path in &cleaned.removed {
                let _ = writeln!(text, "{host}: removed {path}");
            }
            for path in &cleaned.kept {
                let _ = writeln!(text, "{host}: cannot remove {path}");
            }
            if text.is_empty() {
                let _ = writeln!(text, "{host}: nothing to remove");
            }
            if cleaned.kept.is_empty() { Ok(text) } else { Err(text) }
        }
        Err(error) => {
            let _ = writeln!(text, "{host}: {}", error.message);
            if let Some(hint) = &error.hint {
                let _ = writeln!(text, "  hint: {hint}");
            }
            Err(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::LinkErrorKind;

    #[test]
    fn the_report_lists_removed_and_remaining_probes() {
        let host = SafeText::new("hgx-01");
        let both = Cleaned { removed: vec!["/a".into()], kept: vec!["/b".into()] };
        assert_eq!(report(&host, Ok(both)), Err("hgx-01: removed /a\nhgx-01: cannot remove /b\n".into()));
        assert_eq!(report(&host, Ok(Cleaned::default())), Ok("hgx-01: nothing to remove\n".into()));
        let error = LinkError::new(LinkErrorKind::Dns, "looking up hgx-01 failed").with_hint("check the spelling");
        assert_eq!(
            report(&host, Err(error)),
            Err("hgx-01: looking up hgx-01 failed\n  hint: check the spelling\n".into())
        );
    }
}
