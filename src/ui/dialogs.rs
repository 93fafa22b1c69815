//! Questions on the way in.
//!
//! ```text
//! ┏━ Unknown host key  1 of 2 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ hgx-10 ━┓
//! ┃ You have not connected to this host before.                          ┃
//! ┃                                                                      ┃
//! ┃ host      hgx-10.lab (10.2.0.20:22)                                  ┃
//! ┃ type      ssh-ed25519                                                ┃
//! ┃ key       SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDmLRTCKq1TXMsU2c8         ┃
//! ┃                                                                      ┃
//! ┃ Skip this host      Esc or s                                         ┃
//! ┃ Trust once          o                                                ┃
//! ┃ Trust and save      type yes, then Enter:                            ┃
//! ┗━ saves to ~/.ssh/known_hosts ━━━━━━━━━━━━━━━━━━━━━━━━ default: skip ━┛
//! ```

use super::flow::Flow;
use super::format::{columns, short};
use super::layout::centered;
use super::pen::Pen;
use crate::app::App;
use crate::app::prompts::{Dialog, GUARD, SAVE_WORD};
use crate::fleet::Moment;
use crate::ssh::prompt::{Prompt, PromptKind};
use crate::wire::SafeText;
use ratatui::layout::Rect;
use ratatui::style::Style;

const WIDTH: u16 = 72;
const LABEL: u16 = 11;

/// Draws the open dialog over the body.
pub(super) fn draw(pen: &mut Pen<'_>, body: Rect, app: &App, now: Moment) {
    let Some((prompt, dialog)) = app.prompts().open_dialog() else { return };
    let height = match prompt.kind {
        PromptKind::HostKey { .. } => 17,
        PromptKind::Passphrase { .. } => 13,
        PromptKind::Secret { .. } => 15,
    };
    let area = centered(body, WIDTH, height);
    pen.clear(area);
    pen.outline(area, &pen.theme.glyphs.heavy, pen.theme.warn);
    let (position, count) = app.prompts().position();
    let (title, name) = match &prompt.kind {
        PromptKind::HostKey { .. } => ("Unknown host key", prompt.hosts.first().cloned().unwrap_or_default()),
        PromptKind::Passphrase { path, .. } => ("Passphrase", path.rsplit('/').next().unwrap_or_default().to_owned()),
        PromptKind::Secret { .. } => ("Login", prompt.hosts.first().cloned().unwrap_or_default()),
    };
    let title = if count > 1 { format!(" {title}  {position} of {count} ") } else { format!(" {title} ") };
    edge(pen, area, area.y, &title, &format!(" {} ", SafeText::new(&name)));
    let footer = if dialog.ignored_keys && now.since(dialog.opened_at) < GUARD * 4 {
        (" keys typed in the first 0.5 s were ignored ".to_owned(), String::new())
    } else {
        match &prompt.kind {
            PromptKind::HostKey { known_hosts, .. } => {
                (format!(" saves to {} ", SafeText::new(known_hosts)), " default: skip ".to_owned())
            }
            _ => (" kept in memory of this session only; never written ".to_owned(), String::new()),
        }
    };
    edge(pen, area, area.bottom().saturating_sub(1), &footer.0, &footer.1);
    let inside = Rect {
        x: area.x + 2,
        y: area.y + 1,
        width: area.width.saturating_sub(4),
        height: area.height.saturating_sub(2),
    };
    let mut flow = Flow::new(pen, inside);
    if area.height == height {
        flow.line("", Style::new());
    }
    match &prompt.kind {
        PromptKind::HostKey { target, key_type, fingerprint, also_known_as, .. } => {
            host_key(&mut flow, [target, key_type, fingerprint], also_known_as, dialog, now);
        }
        PromptKind::Passphrase { path, fingerprint, failures } => {
            flow.labelled("key", LABEL, &SafeText::new(path));
            if let Some(fingerprint) = fingerprint {
                flow.labelled("", LABEL, &SafeText::new(fingerprint));
            }
            flow.labelled("for", LABEL, &hosts(prompt));
            flow.gap();
            field(&mut flow, "passphrase", dialog, false, now);
            flow.gap();
            flow.labelled("Unlock", LABEL, "Enter");
            flow.labelled("Skip", LABEL, "Esc: these hosts stay unconnected");
            wrong(&mut flow, *failures);
        }
        PromptKind::Secret { text, instruction, echo, failures } => {
            let instruction = SafeText::new(instruction);
            if !instruction.trim().is_empty() {
                flow.wrapped(&instruction, flow.pen.theme.plain);
                flow.gap();
            }
            flow.labelled("for", LABEL, &hosts(prompt));
            flow.gap();
            flow.wrapped(&SafeText::new(text.trim()), flow.pen.theme.plain);
            field(&mut flow, "answer", dialog, *echo, now);
            flow.gap();
            flow.labelled("Send", LABEL, "Enter");
            flow.labelled("Skip", LABEL, "Esc: these hosts stay unconnected");
            wrong(&mut flow, *failures);
        }
    }
}

fn host_key(
    flow: &mut Flow<'_, '_>,
    [target, key_type, fingerprint]: [&String; 3],
    also_known_as: &[String],
    dialog: &Dialog,
    now: Moment,
) {
    let plain = flow.pen.theme.plain;
    flow.line("You have not connected to this host before.", plain);
    flow.gap();
    flow.labelled("host", LABEL, &SafeText::new(target));
    flow.labelled("type", LABEL, &SafeText::new(key_type));
    flow.labelled("key", LABEL, &SafeText::new(fingerprint));
    if also_known_as.is_empty() {
        flow.labelled("same key", LABEL, "not known under another name");
    } else {
        flow.labelled("same key", LABEL, &SafeText::new(&also_known_as.join(", ")));
    }
    flow.gap();
    flow.line("Compare with the host (on its console):", plain);
    flow.line(&format!("ssh-keygen -lf /etc/ssh/ssh_host_{}_key.pub", key_file(key_type)), plain);
    flow.gap();
    flow.labelled("Esc or s", LABEL, "skip this host");
    flow.labelled("o", LABEL, "trust this once");
    let label = "yes Enter";
    let caret = caret(flow, dialog, now);
    let typed = dialog.input.shown();
    flow.labelled(label, LABEL, &short!("trust and save; type yes: {typed}{caret}"));
    if dialog.wants_word && typed != SAVE_WORD {
        flow.line("type the whole word yes to save, or o to trust once", flow.pen.theme.warn);
    }
}

/// The middle of the file name under which sshd keeps a key of this type.
fn key_file(key_type: &str) -> &'static str {
    match key_type {
        "ssh-rsa" | "rsa-sha2-256" | "rsa-sha2-512" => "rsa",
        kind if kind.starts_with("ecdsa-") => "ecdsa",
        _ => "ed25519",
    }
}

/// The caret shows from when keys count.
fn caret(flow: &Flow<'_, '_>, dialog: &Dialog, now: Moment) -> &'static str {
    if now.since(dialog.opened_at) < GUARD { "" } else { flow.pen.theme.glyphs.caret }
}

fn field(flow: &mut Flow<'_, '_>, label: &str, dialog: &Dialog, echo: bool, now: Moment) {
    let caret = caret(flow, dialog, now);
    if echo {
        let text = SafeText::new(dialog.input.shown());
        let room = usize::from(WIDTH - LABEL - 6);
        let end = super::format::ending(&text, room);
        flow.labelled(label, LABEL, &format!("{end}{caret}"));
    } else {
        flow.labelled(label, LABEL, &format!("(typed text is not shown) {caret}"));
    }
}

fn wrong(flow: &mut Flow<'_, '_>, failures: u32) {
    if failures > 0 {
        flow.gap();
        let style = flow.pen.theme.warn;
        flow.line(&short!("that was wrong ({failures} of 3)"), style);
    }
}

/// `hgx-11 and 7 more hosts`.
fn hosts(prompt: &Prompt) -> SafeText {
    let first = prompt.hosts.first().map_or("-", String::as_str);
    match prompt.hosts.len() {
        0 | 1 => SafeText::new(first),
        2 => SafeText::new(&format!("{first} and 1 more host")),
        count => SafeText::new(&format!("{first} and {} more hosts", count - 1)),
    }
}

fn edge(pen: &mut Pen<'_>, area: Rect, y: u16, left: &str, right: &str) {
    let room = area.width.saturating_sub(4);
    let used = pen.fit(area.x + 2, y, room, left, pen.theme.focus);
    let taken = columns(right) as u16;
    if used + taken < room {
        pen.text(area.right() - 2 - taken, y, taken, right, pen.theme.focus);
    }
}
