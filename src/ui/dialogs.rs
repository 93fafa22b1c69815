//! The dialogs over a view: confirmation of a signal, login prompts, the user picker and the palette.
//!
//! ```text
//! ┏━ Unknown host key  1 of 2 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ hgx-10 ━┓
//! ┃ You have not connected to this host before.                          ┃
//! ┃                                                                      ┃
//! ┃ host      hgx-10.lab (10.2.0.20:22)                                  ┃
//! ┃ type      ssh-ed25519                                                ┃
//! ┃ key       SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDmLRTCKq1TXMsU2c8         ┃
//! ┗━ saves to ~/.ssh/known_hosts ━━━━━━━━━━━━━━━━━━━━━━━━ default: skip ━┛
//! ```

use super::areas::centered;
use super::canvas::{Canvas, LineWriter};
use super::format::{columns, command_text, memory, plural, short, strip_directories, wrap};
use crate::app::dialogs::{IGNORE_KEYS_FOR, PromptDialog, SAVE_WORD};
use crate::app::palette::PaletteTarget;
use crate::app::signals::{Confirmation, SignalDialog, signal_name};
use crate::app::{App, SignalTarget};
use crate::fleet::{Moment, gpu_list};
use crate::ssh::prompt::{Prompt, PromptKind};
use crate::wire::SafeText;
use ratatui::layout::{Margin, Rect};
use ratatui::style::Style;
use std::borrow::Cow;

const SIGNAL_COLUMNS: u16 = 78;
const LABEL: u16 = 11;
/// The maximum number of targets in the list.
const MAX_LISTED: usize = 12;

/// Draws the signal dialog over the body while it is open.
pub(super) fn draw_signal_dialog(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let Some(dialog) = app.signals().dialog() else { return };
    let theme = canvas.theme;
    let listed = dialog.targets.len().min(MAX_LISTED) as u16;
    let height = match dialog.targets.as_slice() {
        [only] => {
            let findings: u16 = only.findings.iter().map(|sentence| rows_of(sentence)).sum();
            9 + u16::from(only.alternative.is_some())
                + 2 * u16::from(only.refusal.is_some())
                + rows_of(&only.command)
                + findings.max(1)
        }
        _ => 9 + listed,
    };
    let area = centered(body, SIGNAL_COLUMNS, height + 2 * u16::from(dialog.is_kill_offer));
    let name = signal_name(dialog.signal);
    let title = if dialog.outcomes.is_some() { short!(" Sent {name} ") } else { short!(" Send {name} ") };
    canvas.dialog(area, &title, theme.warn);
    // Nothing is sent to a process that cannot be signalled.
    if dialog.confirmation != Confirmation::Impossible {
        let foot = " the probe verifies pid and start time before it sends the signal ";
        canvas.fit(area.x + 2, area.bottom().saturating_sub(1), area.width.saturating_sub(4), foot, theme.dim);
    }
    let inner = area.inner(Margin::new(2, 1));
    let mut writer = LineWriter::new(canvas, inner);
    if dialog.is_kill_offer {
        writer.line("These processes still run 30 s after the signal to their launcher.", theme.plain);
        writer.gap();
    }
    match (dialog.targets.as_slice(), &dialog.outcomes) {
        ([only], None) => draw_single_target(&mut writer, only),
        (targets, outcomes) => draw_targets(&mut writer, targets, outcomes.as_deref()),
    }
    writer.gap();
    if dialog.outcomes.is_some() {
        writer.labelled("Close", LABEL, "Esc or Enter");
    } else {
        draw_choices(&mut writer, dialog, now);
    }
}

fn rows_of(text: &str) -> u16 {
    wrap(&shorten(text), usize::from(SIGNAL_COLUMNS - 4 - LABEL)).len().clamp(1, 4) as u16
}

/// The part of a text that fits into the rows that [`rows_of`] reserves.
fn shorten(text: &str) -> String {
    text.chars().take(usize::from(4 * (SIGNAL_COLUMNS - 4 - LABEL))).collect()
}

fn draw_single_target(writer: &mut LineWriter<'_, '_>, target: &SignalTarget) {
    let gpus = short!("GPU{} {}", plural(target.gpu_indexes.len()), gpu_list(&target.gpu_indexes));
    writer.labelled("host", LABEL, &format!("{}   {}", target.host_name, gpus.as_str()));
    writer.labelled("user", LABEL, &user_text(target));
    let pid = target.process.pid;
    let process = match target.workers.len() {
        0 => format!("pid {pid}"),
        1 => format!("pid {pid}, the launcher of 1 worker"),
        count => format!("pid {pid}, the launcher of {count} workers"),
    };
    writer.labelled("process", LABEL, &process);
    writer.labelled("command", LABEL, &shorten(&target.command));
    match target.findings.as_slice() {
        [] => writer.labelled("findings", LABEL, "none about it"),
        findings => {
            for (index, sentence) in findings.iter().enumerate() {
                writer.labelled(if index == 0 { "findings" } else { "" }, LABEL, &shorten(sentence));
            }
        }
    }
    if let Some(way) = &target.alternative {
        writer.labelled("better", LABEL, way);
    }
    if let Some(why) = &target.refusal {
        writer.gap();
        let style = writer.canvas.theme.warn;
        writer.wrapped(why, style);
    }
}

fn user_text(target: &SignalTarget) -> String {
    let name = target.full_name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let whose = if target.is_mine { "you" } else { "not you" };
    format!("{}{name}, {whose}", target.who)
}

fn draw_targets(writer: &mut LineWriter<'_, '_>, targets: &[SignalTarget], outcomes: Option<&[Option<String>]>) {
    let theme = writer.canvas.theme;
    let mut hosts: Vec<&str> = targets.iter().map(|target| target.host_name.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let plural = plural(hosts.len());
    writer.line(&short!("{} processes on {} host{plural}", targets.len(), hosts.len()), theme.plain);
    for (index, target) in targets.iter().enumerate().take(MAX_LISTED) {
        let outcome =
            outcomes.map(|outcomes| outcomes.get(index).and_then(Option::as_deref).unwrap_or("waiting for an answer"));
        let (text, style) = match (outcome, &target.refusal) {
            (Some("sent"), _) => ("sent", theme.plain),
            (Some(text), _) => (text, theme.warn),
            (None, Some(why)) => (why.as_str(), theme.warn),
            (None, None) => ("", theme.plain),
        };
        let command = strip_directories(&target.command);
        let about = if text.is_empty() { command.as_ref() } else { text };
        let line = format!("{} pid {} {}: {about}", target.host_name, target.process.pid, target.who);
        writer.line(&line, style);
    }
    if targets.len() > MAX_LISTED {
        writer.line(&short!("and {} more", targets.len() - MAX_LISTED), theme.dim);
    }
}

fn draw_choices(writer: &mut LineWriter<'_, '_>, dialog: &SignalDialog, now: Moment) {
    let theme = writer.canvas.theme;
    let name = signal_name(dialog.signal);
    let counts = !dialog.is_kill_offer || now.since(dialog.opened_at) >= crate::app::dialogs::IGNORE_KEYS_FOR;
    let send = short!("Send {name}");
    match &dialog.confirmation {
        Confirmation::Impossible => writer.labelled("Close", LABEL, "Esc or Enter"),
        Confirmation::Key => {
            writer.labelled("Cancel", LABEL, "Esc or Enter");
            writer.labelled(&send, LABEL, "y");
        }
        Confirmation::Word(word) => {
            writer.labelled("Cancel", LABEL, "Esc, or Enter without text");
            let caret = if counts { theme.glyphs.caret } else { "" };
            let typed = crate::wire::SafeText::new(&dialog.typed);
            writer.labelled(&send, LABEL, &format!("type {word}, then Enter: {typed}{caret}"));
            if dialog.is_mistyped {
                writer.line(&format!("that is not {word}"), Style::new().patch(theme.warn));
            }
        }
    }
}

const PROMPT_COLUMNS: u16 = 72;

/// Draws the prompt dialog over the body while it is open.
pub(super) fn draw_prompt_dialog(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let Some((prompt, dialog)) = app.prompts().open_dialog() else { return };
    let height = match prompt.kind {
        PromptKind::HostKey { .. } => 17,
        PromptKind::Passphrase { .. } => 13,
        PromptKind::Secret { .. } => 15,
    };
    let area = centered(body, PROMPT_COLUMNS, height);
    canvas.dialog(area, "", canvas.theme.warn);
    let (position, count) = app.prompts().position();
    let (title, name) = match &prompt.kind {
        PromptKind::HostKey { .. } => ("Unknown host key", prompt.hosts.first().cloned().unwrap_or_default()),
        PromptKind::Passphrase { path, .. } => ("Passphrase", path.rsplit('/').next().unwrap_or_default().to_owned()),
        PromptKind::Secret { .. } => ("Login", prompt.hosts.first().cloned().unwrap_or_default()),
    };
    let title = if count > 1 { format!(" {title}  {position} of {count} ") } else { format!(" {title} ") };
    draw_edge(canvas, area, area.y, &title, &format!(" {} ", SafeText::new(&name)));
    let footer = if dialog.ignored_keys && now.since(dialog.opened_at) < IGNORE_KEYS_FOR * 4 {
        (" keys typed in the first 0.5 s were ignored ".to_owned(), String::new())
    } else {
        match &prompt.kind {
            PromptKind::HostKey { known_hosts, .. } => {
                (format!(" saves to {} ", SafeText::new(known_hosts)), " default: skip ".to_owned())
            }
            _ => (" kept in memory only, never written to disk ".to_owned(), String::new()),
        }
    };
    draw_edge(canvas, area, area.bottom().saturating_sub(1), &footer.0, &footer.1);
    let inner = area.inner(Margin::new(2, 1));
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
            writer.labelled("for", LABEL, &hosts_text(prompt));
            writer.gap();
            draw_field(&mut writer, "passphrase", dialog, false, now);
            writer.gap();
            writer.labelled("Unlock", LABEL, "Enter");
            writer.labelled("Skip", LABEL, "Esc: do not connect to these hosts");
            draw_failures(&mut writer, *failures);
        }
        PromptKind::Secret { text, instruction, echo, failures } => {
            let instruction = SafeText::new(instruction);
            if !instruction.trim().is_empty() {
                writer.wrapped(&instruction, writer.canvas.theme.plain);
                writer.gap();
            }
            writer.labelled("for", LABEL, &hosts_text(prompt));
            writer.gap();
            writer.wrapped(&SafeText::new(text.trim()), writer.canvas.theme.plain);
            draw_field(&mut writer, "answer", dialog, *echo, now);
            writer.gap();
            writer.labelled("Send", LABEL, "Enter");
            writer.labelled("Skip", LABEL, "Esc: do not connect to these hosts");
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
        writer.labelled("same key", LABEL, "not known for any other host");
    } else {
        writer.labelled("same key", LABEL, &SafeText::new(&also_known_as.join(", ")));
    }
    writer.gap();
    writer.line("Compare it with the key on the console of the host:", plain);
    writer.line(&format!("ssh-keygen -lf /etc/ssh/ssh_host_{}_key.pub", key_file(key_type)), plain);
    writer.gap();
    writer.labelled("Esc or s", LABEL, "skip this host");
    writer.labelled("o", LABEL, "trust this once");
    let label = "yes Enter";
    let caret = caret(writer, dialog, now);
    let typed = dialog.input.text();
    writer.labelled(label, LABEL, &short!("trust and save; type yes: {typed}{caret}"));
    if dialog.needs_save_word && typed != SAVE_WORD {
        writer.line("type yes in full to save, or o to trust once", writer.canvas.theme.warn);
    }
}

/// Returns the key type in the name of a key file of sshd: `ssh_host_ed25519_key`.
fn key_file(key_type: &str) -> &'static str {
    match key_type {
        "ssh-rsa" | "rsa-sha2-256" | "rsa-sha2-512" => "rsa",
        kind if kind.starts_with("ecdsa-") => "ecdsa",
        _ => "ed25519",
    }
}

/// Returns the caret, which appears when the dialog starts to accept keys.
fn caret(writer: &LineWriter<'_, '_>, dialog: &PromptDialog, now: Moment) -> &'static str {
    if now.since(dialog.opened_at) < IGNORE_KEYS_FOR { "" } else { writer.canvas.theme.glyphs.caret }
}

fn draw_field(writer: &mut LineWriter<'_, '_>, label: &str, dialog: &PromptDialog, echo: bool, now: Moment) {
    let caret = caret(writer, dialog, now);
    if echo {
        let text = SafeText::new(dialog.input.text());
        let available = usize::from(PROMPT_COLUMNS - LABEL - 6);
        let end = super::format::truncate_start(&text, available);
        writer.labelled(label, LABEL, &format!("{end}{caret}"));
    } else {
        writer.labelled(label, LABEL, &format!("(input is hidden) {caret}"));
    }
}

fn draw_failures(writer: &mut LineWriter<'_, '_>, failures: u32) {
    if failures > 0 {
        writer.gap();
        let style = writer.canvas.theme.warn;
        writer.line(&short!("rejected ({failures} of 3 attempts)"), style);
    }
}

/// `hgx-11 and 7 more hosts`
fn hosts_text(prompt: &Prompt) -> SafeText {
    let first = prompt.hosts.first().map_or("-", String::as_str);
    match prompt.hosts.len() {
        0 | 1 => SafeText::new(first),
        2 => SafeText::new(&format!("{first} and 1 more host")),
        count => SafeText::new(&format!("{first} and {} more hosts", count - 1)),
    }
}

fn draw_edge(canvas: &mut Canvas<'_>, area: Rect, y: u16, left: &str, right: &str) {
    let available = area.width.saturating_sub(4);
    let used = canvas.fit(area.x + 2, y, available, left, canvas.theme.focus);
    let taken = columns(right) as u16;
    if used + taken < available {
        canvas.text(area.right() - 2 - taken, y, taken, right, canvas.theme.focus);
    }
}

const PICKER_COLUMNS: u16 = 44;

/// Draws the user picker over the body while it is open.
pub(super) fn draw_user_picker(canvas: &mut Canvas<'_>, body: Rect, app: &App) {
    let Some(selected) = app.screen().user_picker else { return };
    let users = app.user_totals();
    let lines = users.len() + 1;
    let area = centered(body, PICKER_COLUMNS, (lines as u16).saturating_add(2));
    let theme = canvas.theme;
    canvas.dialog(area, " Whose processes ", theme.focus);
    let shown = usize::from(area.height.saturating_sub(2));
    let selected = selected.min(lines - 1);
    let top = (selected + 1).saturating_sub(shown);
    let below = lines.saturating_sub(top + shown);
    canvas.more_below(area, below, "");
    for (index, line) in (top..lines).take(shown).enumerate() {
        let y = area.y + 1 + index as u16;
        let style = if line == selected { theme.focus } else { theme.plain };
        if line == selected {
            canvas.text(area.x + 1, y, 1, theme.glyphs.pointer, theme.focus);
        }
        let Some((user, bytes, jobs)) = line.checked_sub(1).and_then(|position| users.get(position)) else {
            canvas.text(area.x + 2, y, area.width.saturating_sub(4), "everybody", style);
            continue;
        };
        let right = area.width.saturating_sub(3);
        let totals_columns = 16.min(right);
        canvas.fit(area.x + 2, y, right.saturating_sub(totals_columns + 1), user, style);
        let plural = if *jobs == 1 { " " } else { "s" };
        let text = short!("{}  {jobs:>3} job{plural}", memory(*bytes).as_str());
        canvas.right(area.x + 2 + right - totals_columns - 1, y, totals_columns, &text, style);
    }
}

const PALETTE_COLUMNS: u16 = 76;
/// The maximum number of visible entries.
const PALETTE_MAX_ROWS: u16 = 18;
/// Columns of the kind of an entry.
const KIND_COLUMNS: u16 = 9;

/// Draws the palette over the body while it is open.
pub(super) fn draw_palette(canvas: &mut Canvas<'_>, body: Rect, app: &App) {
    let Some(palette) = app.palette() else { return };
    let theme = canvas.theme;
    // The height does not depend on the typed text, so that the dialog does not jump.
    let area = centered(body, PALETTE_COLUMNS, PALETTE_MAX_ROWS + 3);
    canvas.dialog(area, " Find a host, user, view, process or command ", theme.focus);
    let (x, width) = (area.x + 2, area.width.saturating_sub(4));
    canvas.text(area.x + 1, area.y + 1, 1, ":", theme.focus);
    let used = canvas.fit(x + 1, area.y + 1, width.saturating_sub(2), palette.text(), theme.plain);
    canvas.text(x + 1 + used, area.y + 1, 1, theme.glyphs.caret, theme.focus);
    let shown = usize::from(area.height.saturating_sub(3));
    let count = palette.matches().len();
    let top = (palette.index() + 1).saturating_sub(shown);
    if count == 0 {
        canvas.fit(x, area.y + 2, width, "nothing matches", theme.dim);
    }
    for (row, (index, entry)) in palette.matches().enumerate().skip(top).take(shown).enumerate() {
        let y = area.y + 2 + row as u16;
        canvas.fit(x, y, KIND_COLUMNS.min(width), entry.target.word(), theme.dim);
        let (x, width) = (x + KIND_COLUMNS, width.saturating_sub(KIND_COLUMNS));
        let detail = (columns(&entry.detail) as u16).min(width / 2);
        let title = match entry.target {
            PaletteTarget::Process(_) => command_text(&entry.title),
            _ => Cow::Borrowed(entry.title.as_str()),
        };
        canvas.fit(x, y, width.saturating_sub(detail + 2), &title, theme.plain);
        canvas.right(x + width - detail, y, detail, &entry.detail, theme.dim);
        if index == palette.index() {
            canvas.text(area.x + 1, y, 1, theme.glyphs.pointer, theme.focus);
            canvas.highlight(Rect { x: area.x + 1, y, width: area.width.saturating_sub(2), height: 1 });
        }
    }
    canvas.more_below(area, count.saturating_sub(top + shown), "");
}
