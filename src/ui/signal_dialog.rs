//! The confirmation before a signal is sent, and what came of it.
//!
//! ```text
//! ┏━ Send TERM ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ hgx-04 ━┓
//! ┃ host       hgx-04   GPUs 4,5                                         ┃
//! ┃ user       dmitri (Dmitri Example), not you                          ┃
//! ┃ process    pid 5350, the launcher of 2 workers                       ┃
//! ┃ command    torchrun --nproc_per_node 8 sft.py                        ┃
//! ┃                                                                      ┃
//! ┃▸Cancel     Esc or Enter                                              ┃
//! ┃ Send TERM  type hgx-04, then Enter: ▏                                ┃
//! ┗━ the probe checks pid and start once more ━━━━━━━━━━━━━━━━━━━━━━━━━━━┛
//! ```

use super::areas::centered;
use super::canvas::Canvas;
use super::format::{columns, short, strip_directories};
use super::line_writer::LineWriter;
use crate::app::signals::{Confirmation, IGNORE_KEYS_FOR, SignalDialog, signal_name};
use crate::app::{App, SignalTarget};
use crate::fleet::{Moment, gpu_list};
use ratatui::layout::Rect;
use ratatui::style::Style;

const WIDTH: u16 = 78;
const LABEL: u16 = 11;
/// The most targets that are listed.
const MAX_LISTED: usize = 12;

/// Draws the dialog over the body, while it is open.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, now: Moment) {
    let Some(dialog) = app.signals().dialog() else { return };
    let theme = canvas.theme;
    let listed = dialog.targets.len().min(MAX_LISTED) as u16;
    let height = match dialog.targets.as_slice() {
        [only] => {
            9 + u16::from(only.alternative.is_some()) + 2 * u16::from(only.refusal.is_some()) + rows_of(&only.command)
        }
        _ => 9 + listed,
    };
    let area = centered(body, WIDTH, height + 2 * u16::from(dialog.is_kill_offer));
    canvas.clear(area);
    canvas.outline(area, &theme.glyphs.heavy, theme.warn);
    let name = signal_name(dialog.signal);
    let title = if dialog.outcomes.is_some() { short!(" Sent {name} ") } else { short!(" Send {name} ") };
    canvas.fit(area.x + 2, area.y, area.width.saturating_sub(4), &title, theme.focus);
    let foot = " the probe checks pid and start once more before it sends ";
    canvas.fit(area.x + 2, area.bottom().saturating_sub(1), area.width.saturating_sub(4), foot, theme.dim);
    let inner = Rect {
        x: area.x + 2,
        y: area.y + 1,
        width: area.width.saturating_sub(4),
        height: area.height.saturating_sub(2),
    };
    let mut writer = LineWriter::new(canvas, inner);
    if dialog.is_kill_offer {
        writer.line("These live 30 s after their launcher got its signal.", theme.plain);
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

fn rows_of(command: &str) -> u16 {
    (columns(command) as u16).div_ceil(WIDTH - 4 - LABEL).clamp(1, 4)
}

fn draw_single_target(writer: &mut LineWriter<'_, '_>, target: &SignalTarget) {
    writer.labelled("host", LABEL, &format!("{}   GPUs {}", target.host_name, gpu_list(&target.gpu_indexes)));
    writer.labelled("user", LABEL, &user(target));
    let pid = target.process.pid;
    let process = match target.workers.len() {
        0 => format!("pid {pid}"),
        1 => format!("pid {pid}, the launcher of 1 worker"),
        count => format!("pid {pid}, the launcher of {count} workers"),
    };
    writer.labelled("process", LABEL, &process);
    let command: String = target.command.chars().take(usize::from(4 * (WIDTH - 4 - LABEL))).collect();
    writer.labelled("command", LABEL, &command);
    if let Some(way) = &target.alternative {
        writer.labelled("better", LABEL, way);
    }
    if let Some(why) = &target.refusal {
        writer.gap();
        let style = writer.canvas.theme.warn;
        writer.wrapped(why, style);
    }
}

fn user(target: &SignalTarget) -> String {
    let name = target.full_name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let whose = if target.is_mine { "you" } else { "not you" };
    format!("{}{name}, {whose}", target.who)
}

fn draw_targets(writer: &mut LineWriter<'_, '_>, targets: &[SignalTarget], outcomes: Option<&[Option<String>]>) {
    let theme = writer.canvas.theme;
    let mut hosts: Vec<&str> = targets.iter().map(|target| target.host_name.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let plural = if hosts.len() == 1 { "" } else { "s" };
    writer.line(&short!("{} processes on {} host{plural}", targets.len(), hosts.len()), theme.plain);
    for (index, target) in targets.iter().enumerate().take(MAX_LISTED) {
        let outcome =
            outcomes.map(|outcomes| outcomes.get(index).and_then(Option::as_deref).unwrap_or("waiting for an answer"));
        let (words, style) = match (outcome, &target.refusal) {
            (Some("sent"), _) => ("sent", theme.plain),
            (Some(words), _) => (words, theme.warn),
            (None, Some(why)) => (why.as_str(), theme.warn),
            (None, None) => ("", theme.plain),
        };
        let command = strip_directories(&target.command);
        let about = if words.is_empty() { command.as_ref() } else { words };
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
    let counts = !dialog.is_kill_offer || now.since(dialog.opened_at) >= IGNORE_KEYS_FOR;
    let send = short!("Send {name}");
    match &dialog.confirmation {
        Confirmation::Impossible => writer.labelled("Close", LABEL, "Esc or Enter"),
        Confirmation::Key => {
            writer.labelled("Cancel", LABEL, "Esc or Enter");
            writer.labelled(&send, LABEL, "y");
        }
        Confirmation::Word(word) => {
            writer.labelled("Cancel", LABEL, "Esc, or Enter without a word");
            let caret = if counts { theme.glyphs.caret } else { "" };
            let typed = crate::wire::SafeText::new(&dialog.typed);
            writer.labelled(&send, LABEL, &format!("type {word}, then Enter: {typed}{caret}"));
            if dialog.is_mistyped {
                writer.line(&format!("that is not {word}"), Style::new().patch(theme.warn));
            }
        }
    }
}
