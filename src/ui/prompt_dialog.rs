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

use super::areas::centered;
use super::canvas::Canvas;
use super::format::{columns, short};
use super::line_writer::LineWriter;
use crate::app::App;
use crate::app::prompts::{IGNORE_KEYS_FOR, PromptDialog, SAVE_WORD};
use crate::fleet::Moment;
use crate::ssh::prompt::{Prompt, PromptKind};
use crate::wire::SafeText;
use ratatui::layout::Rect;
use ratatui::style::Style;

const WIDTH: u16 = 72;
const LABEL: u16 = 11;

/// Draws the open dialog over the body.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let Some((prompt, dialog)) = app.prompts().open_dialog() else { return };
    let height = match prompt.kind {
        PromptKind::HostKey { .. } => 17,
        PromptKind::Passphrase { .. } => 13,
        PromptKind::Secret { .. } => 15,
    };
    let area = centered(body, WIDTH, height);
    canvas.clear(area);
    canvas.outline(area, &canvas.theme.glyphs.heavy, canvas.theme.warn);
    let (position, count) = app.prompts().position();
    let (title, name) = match &prompt.kind {
        PromptKind::HostKey { .. } => ("Unknown host key", prompt.hosts.first().cloned().unwrap_or_default()),
        PromptKind::Passphrase { path, .. } => ("Passphrase", path.rsplit('/').next().unwrap_or_default().to_owned()),
        PromptKind::Secret { .. } => ("Login", prompt.hosts.first().cloned().unwrap_or_default()),
    };
    let title = if count > 1 { format!(" {title}  {position} of {count} ") } else { format!(" {title} ") };
    edge(canvas, area, area.y, &title, &format!(" {} ", SafeText::new(&name)));
    let footer = if dialog.ignored_keys && now.since(dialog.opened_at) < IGNORE_KEYS_FOR * 4 {
        (" keys typed in the first 0.5 s were ignored ".to_owned(), String::new())
    } else {
        match &prompt.kind {
            PromptKind::HostKey { known_hosts, .. } => {
                (format!(" saves to {} ", SafeText::new(known_hosts)), " default: skip ".to_owned())
            }
            _ => (" kept in memory of this session only; never written ".to_owned(), String::new()),
        }
    };
    edge(canvas, area, area.bottom().saturating_sub(1), &footer.0, &footer.1);
    let inner = Rect {
        x: area.x + 2,
        y: area.y + 1,
        width: area.width.saturating_sub(4),
        height: area.height.saturating_sub(2),
    };
    let mut writer = LineWriter::new(canvas, inner);
    if area.height == height {
        writer.line("", Style::new());
    }
    match &prompt.kind {
        PromptKind::HostKey { target, key_type, fingerprint, also_known_as, .. } => {
            draw_host_key(&mut writer, [target, key_type, fingerprint], also_known_as, dialog, now);
        }
        PromptKind::Passphrase { path, fingerprint, failures } => {
            writer.labelled("key", LABEL, &SafeText::new(path));
            if let Some(fingerprint) = fingerprint {
                writer.labelled("", LABEL, &SafeText::new(fingerprint));
            }
            writer.labelled("for", LABEL, &hosts(prompt));
            writer.gap();
            draw_field(&mut writer, "passphrase", dialog, false, now);
            writer.gap();
            writer.labelled("Unlock", LABEL, "Enter");
            writer.labelled("Skip", LABEL, "Esc: these hosts stay unconnected");
            draw_failures(&mut writer, *failures);
        }
        PromptKind::Secret { text, instruction, echo, failures } => {
            let instruction = SafeText::new(instruction);
            if !instruction.trim().is_empty() {
                writer.wrapped(&instruction, writer.canvas.theme.plain);
                writer.gap();
            }
            writer.labelled("for", LABEL, &hosts(prompt));
            writer.gap();
            writer.wrapped(&SafeText::new(text.trim()), writer.canvas.theme.plain);
            draw_field(&mut writer, "answer", dialog, *echo, now);
            writer.gap();
            writer.labelled("Send", LABEL, "Enter");
            writer.labelled("Skip", LABEL, "Esc: these hosts stay unconnected");
            draw_failures(&mut writer, *failures);
        }
    }
}

fn draw_host_key(
    writer: &mut LineWriter<'_, '_>,
    [target, key_type, fingerprint]: [&String; 3],
    also_known_as: &[String],
    dialog: &PromptDialog,
    now: Moment,
) {
    let plain = writer.canvas.theme.plain;
    writer.line("You have not connected to this host before.", plain);
    writer.gap();
    writer.labelled("host", LABEL, &SafeText::new(target));
    writer.labelled("type", LABEL, &SafeText::new(key_type));
    writer.labelled("key", LABEL, &SafeText::new(fingerprint));
    if also_known_as.is_empty() {
        writer.labelled("same key", LABEL, "not known under another name");
    } else {
        writer.labelled("same key", LABEL, &SafeText::new(&also_known_as.join(", ")));
    }
    writer.gap();
    writer.line("Compare with the host (on its console):", plain);
    writer.line(&format!("ssh-keygen -lf /etc/ssh/ssh_host_{}_key.pub", key_file(key_type)), plain);
    writer.gap();
    writer.labelled("Esc or s", LABEL, "skip this host");
    writer.labelled("o", LABEL, "trust this once");
    let label = "yes Enter";
    let caret = caret(writer, dialog, now);
    let typed = dialog.input.text();
    writer.labelled(label, LABEL, &short!("trust and save; type yes: {typed}{caret}"));
    if dialog.needs_save_word && typed != SAVE_WORD {
        writer.line("type the whole word yes to save, or o to trust once", writer.canvas.theme.warn);
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
fn caret(writer: &LineWriter<'_, '_>, dialog: &PromptDialog, now: Moment) -> &'static str {
    if now.since(dialog.opened_at) < IGNORE_KEYS_FOR { "" } else { writer.canvas.theme.glyphs.caret }
}

fn draw_field(writer: &mut LineWriter<'_, '_>, label: &str, dialog: &PromptDialog, echo: bool, now: Moment) {
    let caret = caret(writer, dialog, now);
    if echo {
        let text = SafeText::new(dialog.input.text());
        let available = usize::from(WIDTH - LABEL - 6);
        let end = super::format::truncate_start(&text, available);
        writer.labelled(label, LABEL, &format!("{end}{caret}"));
    } else {
        writer.labelled(label, LABEL, &format!("(typed text is not shown) {caret}"));
    }
}

fn draw_failures(writer: &mut LineWriter<'_, '_>, failures: u32) {
    if failures > 0 {
        writer.gap();
        let style = writer.canvas.theme.warn;
        writer.line(&short!("that was wrong ({failures} of 3)"), style);
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

fn edge(canvas: &mut Canvas<'_>, area: Rect, y: u16, left: &str, right: &str) {
    let available = area.width.saturating_sub(4);
    let used = canvas.fit(area.x + 2, y, available, left, canvas.theme.focus);
    let taken = columns(right) as u16;
    if used + taken < available {
        canvas.text(area.right() - 2 - taken, y, taken, right, canvas.theme.focus);
    }
}
