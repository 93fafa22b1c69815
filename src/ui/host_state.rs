//! The state of a host without current data: connecting, down, stale, waiting for the user, or without a driver.
//!
//! ```text
//! ╭─ hgx-07 ──────────────── connecting ─╮╭─ hgx-08 ──────────────── DOWN 4m12s ─╮
//! │⠹ attempt 1   3.1 s                   ││x no route to host (tcp 22)           │
//! │                                      ││                                      │
//! │✓ name                                ││last seen 13:58:19  6 busy 2 free     │
//! │✓ tcp                                 ││                                      │
//! │⠹ key exchange                        ││retry 5 in 27s  r now  L log          │
//! ╰──────────────────────────────────────╯╰──────────────────────────────────────╯
//! ```
//!
//! A host that was connected before keeps its last values, dimmed, below the reason:
//!
//! ```text
//! ╭─ hgx-08 ──────────────── DOWN 4m12s ─╮
//! │x no route to host (tcp 22)           │
//! │0 ━━━━━━━━╸  95% 74/80G 76° erika     │
//! │1 · free      0%  0/80G 31°           │
//! ╰─ retry 5 in 27s  r now  L log ───────╯
//! ```

use super::canvas::{Canvas, LineWriter, Segments};
use super::format::{ShortString, clock, interval, plural, short, span};
use super::theme::Theme;
use crate::app::layout::GridLayout;
use crate::app::{Action, App, HostSummary};
use crate::fleet::{ConnectPhase, GpuState, Host, Link, LinkError, LinkErrorKind, Moment};
use crate::ssh::prompt::{Prompt, PromptKind};
use crate::wire::format::{DurationStyle, duration};
use crate::wire::{DriverError, DriverErrorKind, SafeText};
use ratatui::layout::Rect;
use ratatui::style::Style;
use std::cmp::Ordering;
use std::time::Duration;

/// A host that rebooted shows this in its title for this long.
const REBOOT_NOTICE_DURATION: Duration = Duration::from_secs(60);

/// Whether there are GPUs to show, with current or with old readings. Otherwise the reason is shown why there are none.
pub(super) fn shows_gpus(host: &Host, summary: &HostSummary) -> bool {
    !summary.gpus.is_empty() && driver_error(host).is_none()
}

/// Whether the host is connected and needs no answer.
pub(super) fn is_connected(app: &App, host: &Host) -> bool {
    matches!(host.link, Link::Live | Link::Stale { .. }) && app.prompts().of_host(host.name()).is_none()
}

/// The state in the title of a host, in place of its totals. `None` for a healthy host.
pub(super) fn status_text(app: &App, host: &Host, summary: &HostSummary, now: Moment) -> Option<(ShortString, Style)> {
    let theme = Theme::new(app.settings);
    if app.prompts().of_host(host.name()).is_some() {
        return Some((short!("NEEDS YOU  P"), theme.warn));
    }
    match &host.link {
        Link::Connecting { .. } => Some((short!("connecting"), theme.dim)),
        Link::Down { .. } if host.link.is_refused() => Some((short!("refused"), theme.dim)),
        Link::Down { since, .. } => Some((short!("DOWN {}", since_text(*since, now).as_str()), theme.warn)),
        Link::NeedsUser { .. } => Some((short!("NEEDS YOU"), theme.warn)),
        Link::Stale { since } => Some((short!("STALE {}", since_text(*since, now).as_str()), theme.warn)),
        Link::Live if host.misbehavior(now).is_some() => Some((short!("MISBEHAVES"), theme.warn)),
        Link::Live if driver_error(host).is_some() => Some((short!("NO GPU DATA"), theme.warn)),
        Link::Live if host.inventory.is_none() || host.snapshot.is_none() => Some((short!("first sample"), theme.dim)),
        Link::Live if !summary.is_fresh => {
            let age = host.received_at.map_or_else(|| short!("-"), |at| since_text(at, now));
            Some((short!("STALE {}", age.as_str()), theme.warn))
        }
        Link::Live => host
            .rebooted_at
            .filter(|at| now.since(*at) < REBOOT_NOTICE_DURATION)
            .map(|at| (short!("REBOOTED {}", since_text(at, now).as_str()), theme.warn)),
    }
}

/// The driver error of a connected host, from the last snapshot or the inventory.
pub(super) fn driver_error(host: &Host) -> Option<&DriverError> {
    let now = host.snapshot.as_ref().and_then(|snapshot| snapshot.driver_error.as_ref());
    now.or_else(|| host.inventory.as_ref().and_then(|inventory| inventory.error.as_ref()))
}

/// Draws the state with its reason, the most important lines first: a low pane shows only these.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, app: &App, host: &Host, summary: &HostSummary, now: Moment) {
    let mut writer = LineWriter::new(canvas, area);
    if let Some(prompt) = app.prompts().of_host(host.name()) {
        draw_waiting_prompt(&mut writer, prompt, app.prompts().count());
        return;
    }
    match &host.link {
        Link::Connecting { attempt, phase, since } => {
            draw_connecting(&mut writer, app, host, summary, (*attempt, *phase, *since), now);
        }
        Link::Down { error, .. } | Link::NeedsUser { error, .. } => {
            let mut next = Segments::default();
            add_next_attempt(&mut next, writer.canvas, app, host, now);
            writer.pin_segments_to_bottom(next);
            draw_link_error(&mut writer, error_glyph(host), error);
            draw_last_seen(&mut writer, app, host, summary);
        }
        Link::Live | Link::Stale { .. } => {
            if let Some(error) = driver_error(host) {
                draw_driver_error(&mut writer, host, error);
            } else {
                let spinner = spinner(writer.canvas.theme, now);
                writer.marked(spinner, "connected, waiting for the GPU driver", writer.canvas.theme.dim);
                host_readings(&mut writer, host);
            }
        }
    }
}

/// Adds when the next attempt begins and the keys: `retry 5 in 27s  r now  L log`.
pub(super) fn add_next_attempt(line: &mut Segments, canvas: &Canvas<'_>, app: &App, host: &Host, now: Moment) {
    let theme = canvas.theme;
    let key = |action| app.keymap().first_key(action);
    if app.prompts().of_host(host.name()).is_some() {
        line.add(9, 0, short!("{} answer", key(Action::OpenPrompts)), theme.plain);
    } else {
        match &host.link {
            Link::Down { retry_at: Some(at), attempt, .. } => {
                let seconds = now.until(*at).as_secs_f64().ceil();
                line.add(9, 0, short!("retry"), theme.plain);
                line.add(4, 1, short!("{}", attempt.saturating_add(1)), theme.plain);
                line.add(9, 1, short!("in {seconds:.0}s"), theme.plain);
                line.add(8, 2, short!("{} now", key(Action::RetryHost)), theme.dim);
            }
            Link::Down { .. } | Link::NeedsUser { .. } => {
                line.add(9, 0, short!("{} retry", key(Action::RetryHost)), theme.plain);
            }
            Link::Connecting { attempt, .. } => line.add(9, 0, short!("attempt {attempt}"), theme.plain),
            Link::Live | Link::Stale { .. } => {}
        }
    }
    line.add(7, 2, short!("{} log", key(Action::Log)), theme.dim);
}

/// Draws why a host with known GPUs has no current data, and returns the area that is left for its last values. Without a
/// footer the next attempt is in the area as well, unless that would take more than a quarter of it.
pub(super) fn draw_reason(
    canvas: &mut Canvas<'_>,
    area: Rect,
    footer: Option<Rect>,
    app: &App,
    host: &Host,
    summary: &HostSummary,
    now: Moment,
) -> Rect {
    let theme = canvas.theme;
    let mut next = Segments::default();
    add_next_attempt(&mut next, canvas, app, host, now);
    add_last_seen(&mut next, canvas, app, host, summary);
    if let Some(footer) = footer {
        next.fit(footer.width.saturating_sub(6));
        canvas.edge(footer, footer.y, &next, &Segments::default());
    }
    if area.height < 2 {
        return area;
    }
    let line = Rect { height: 1, ..area };
    let mut rows = 1;
    let mut writer = LineWriter::new(canvas, line);
    if let Some(prompt) = app.prompts().of_host(host.name()) {
        let (glyph, text) = prompt_text(prompt);
        writer.marked(glyph, text, theme.warn);
    } else if let Some(error) = host.link.error() {
        let style = if is_grave(error) { theme.crit } else { theme.warn };
        writer.marked(error_glyph(host), &error.message, style);
    } else if let Link::Connecting { phase, since, .. } = &host.link {
        let text = short!("{}  {} s", phase.description(), now.since(*since).as_secs());
        writer.marked(spinner(theme, now), &text, theme.plain);
    }
    if footer.is_none() && area.height >= 8 {
        rows += 1;
        LineWriter::new(canvas, Rect { y: area.y + 1, ..line }).segments(next);
    }
    Rect { y: area.y + rows, height: area.height - rows, ..area }
}

/// Adds when the host was last seen and the states of its GPUs at that time: `last seen 12:08  8 busy`.
pub(super) fn add_last_seen(line: &mut Segments, canvas: &Canvas<'_>, app: &App, host: &Host, summary: &HostSummary) {
    if let Some(at) = host.received_at {
        let time = clock(at, app.settings.utc_offset_seconds);
        line.add(6, 2, short!("last seen {}", time.get(..5).unwrap_or_default()), canvas.theme.dim);
        line.add(3, 2, last_counts(summary), canvas.theme.dim);
    }
}

/// `8 busy 2 free`: the states of the GPUs when the host was last seen.
fn last_counts(summary: &HostSummary) -> ShortString {
    let count = |state| summary.gpus.iter().filter(|gpu| gpu.last_state.0 == state).count();
    let mut text = ShortString::new();
    for (state, word) in [
        (GpuState::Fault, "faulty"),
        (GpuState::Hung, "hung?"),
        (GpuState::InUse, "busy"),
        (GpuState::Idle, "idle"),
        (GpuState::Free, "free"),
    ] {
        let gap = if text.is_empty() { "" } else { " " };
        match count(state) {
            0 => {}
            count => text = short!("{}{gap}{count} {word}", text.as_str()),
        }
    }
    text
}

/// Draws the age of stale readings below the GPUs, if a row is free.
pub(super) fn draw_stale_notice(
    canvas: &mut Canvas<'_>,
    area: Rect,
    layout: &GridLayout,
    summary: &HostSummary,
    host: &Host,
    now: Moment,
) {
    let rows = summary.gpus.len().div_ceil(usize::from(layout.inner_columns).max(1)) as u16;
    if summary.is_fresh || rows + 1 >= area.height {
        return;
    }
    let theme = canvas.theme;
    let mut writer = LineWriter::new(canvas, Rect { y: area.y + rows + 1, height: area.height - rows - 1, ..area });
    let age = host.age(now).map_or_else(|| short!("-"), span);
    writer.marked(
        "~",
        &short!("no sample for {} (expected every {})", age.as_str(), interval(host.interval()).as_str()),
        theme.warn,
    );
    if let Some(round_trip) = host.round_trip {
        writer.line(&short!("  heartbeat round trip {}", milliseconds(round_trip).as_str()), theme.dim);
    }
}

/// `23 ms`
pub(super) fn milliseconds(duration: Duration) -> ShortString {
    short!("{:.0} ms", duration.as_secs_f64() * 1000.0)
}

/// Returns the progress glyph, which changes every second.
pub(super) fn spinner(theme: &Theme, now: Moment) -> &'static str {
    theme.glyphs.spinner[(now.since_start().as_secs() % 4) as usize]
}

fn draw_connecting(
    writer: &mut LineWriter<'_, '_>,
    app: &App,
    host: &Host,
    summary: &HostSummary,
    (attempt, phase, since): (u32, ConnectPhase, Moment),
    now: Moment,
) {
    const STEPS: [ConnectPhase; 6] = [
        ConnectPhase::Name,
        ConnectPhase::Tcp,
        ConnectPhase::KeyExchange,
        ConnectPhase::Login,
        ConnectPhase::Probe,
        ConnectPhase::FirstSample,
    ];
    let theme = writer.canvas.theme;
    let spinner = spinner(theme, now);
    let seconds = now.since(since).as_secs();
    if writer.rows_left() < STEPS.len() as u16 + 2 {
        writer.marked(spinner, &short!("{}  {seconds} s  attempt {attempt}", phase.description()), theme.plain);
        draw_last_seen(writer, app, host, summary);
        return;
    }
    writer.marked(spinner, &short!("attempt {attempt}   {seconds} s"), theme.plain);
    writer.gap();
    if phase == ConnectPhase::Queued {
        writer.marked(spinner, phase.description(), theme.plain);
    }
    for step in STEPS {
        let (glyph, style) = match step.cmp(&phase) {
            Ordering::Less => (theme.glyphs.done, theme.dim),
            Ordering::Equal => (spinner, theme.plain),
            Ordering::Greater => (theme.glyphs.free, theme.dim),
        };
        writer.marked(glyph, step.description(), style);
    }
}

/// Whether somebody may be between the user and the host.
fn is_grave(error: &LinkError) -> bool {
    matches!(error.kind, LinkErrorKind::HostKeyChanged | LinkErrorKind::HostKeyRevoked)
}

/// The glyph before the error of a host.
fn error_glyph(host: &Host) -> &'static str {
    match &host.link {
        Link::Down { error, .. } | Link::NeedsUser { error, .. } if is_grave(error) => "!",
        Link::NeedsUser { error, .. } if error.kind == LinkErrorKind::HostKeyUnknown => "k",
        Link::NeedsUser { .. } => "p",
        _ => "x",
    }
}

fn draw_link_error(writer: &mut LineWriter<'_, '_>, glyph: &str, error: &LinkError) {
    let theme = writer.canvas.theme;
    let style = if is_grave(error) { theme.crit } else { theme.warn };
    writer.marked(glyph, &error.message, style);
    if let Some(hint) = &error.hint {
        writer.indented(hint, theme.plain);
    }
}

fn draw_last_seen(writer: &mut LineWriter<'_, '_>, app: &App, host: &Host, summary: &HostSummary) {
    let Some(at) = host.received_at else { return };
    writer.gap();
    let theme = writer.canvas.theme;
    let mut line = Segments::default();
    line.add(99, 0, short!("last seen {}", clock(at, app.settings.utc_offset_seconds).as_str()), theme.dim);
    line.add(5, 2, last_counts(summary), theme.dim);
    writer.segments(line);
    if let Some(names) = main_users(summary) {
        writer.indented(&names, theme.dim);
    }
}

/// `used by alice 0-5, bob 6`, for the time when the host was last seen.
fn main_users(summary: &HostSummary) -> Option<String> {
    let mut users: Vec<(&SafeText, Vec<u32>)> = Vec::new();
    for gpu in &summary.gpus {
        let Some(user) = &gpu.main_user else { continue };
        match users.iter_mut().find(|(known, _)| *known == user) {
            Some((_, indexes)) => indexes.push(gpu.index),
            None => users.push((user, vec![gpu.index])),
        }
    }
    let parts: Vec<String> =
        users.iter().map(|(user, indexes)| format!("{user} {}", crate::fleet::gpu_list(indexes))).collect();
    (!parts.is_empty()).then(|| format!("used by {}", parts.join(", ")))
}

/// The glyph and the text of a prompt.
fn prompt_text(prompt: &Prompt) -> (&'static str, &'static str) {
    match &prompt.kind {
        PromptKind::HostKey { .. } => ("k", "unknown host key"),
        PromptKind::Passphrase { .. } => ("p", "key needs a passphrase"),
        PromptKind::Secret { .. } => ("p", "the server needs an answer"),
    }
}

fn draw_waiting_prompt(writer: &mut LineWriter<'_, '_>, prompt: &Prompt, waiting: usize) {
    let theme = writer.canvas.theme;
    let others = prompt.hosts.len().saturating_sub(1);
    writer.pin_to_bottom("press P to answer", &short!("{waiting} waiting"));
    let (glyph, text) = prompt_text(prompt);
    writer.marked(glyph, text, theme.warn);
    writer.gap();
    match &prompt.kind {
        PromptKind::HostKey { key_type, fingerprint, .. } => {
            writer.line(key_type, theme.plain);
            writer.wrapped(fingerprint, theme.plain);
        }
        PromptKind::Passphrase { path, .. } => {
            writer.wrapped(path, theme.plain);
        }
        PromptKind::Secret { text, .. } => {
            writer.wrapped(&SafeText::new(text), theme.plain);
        }
    }
    if others > 0 {
        writer.line(&short!("also needed by {others} more host{}", plural(others)), theme.dim);
    }
}

fn draw_driver_error(writer: &mut LineWriter<'_, '_>, host: &Host, error: &DriverError) {
    let theme = writer.canvas.theme;
    writer.marked("!", &error.message, theme.warn);
    let fix = match error.kind {
        DriverErrorKind::NoLibrary => "usual fix: install the NVIDIA driver",
        DriverErrorKind::DriverNotLoaded => "usual fix: modprobe nvidia, or reboot",
        DriverErrorKind::VersionMismatch => "usual fix: reboot, or reload nvidia",
        DriverErrorKind::NoPermission => "usual fix: allow this account to use /dev/nvidia*",
        DriverErrorKind::Blocked => "the driver does not answer; see dmesg",
        DriverErrorKind::GpuLost | DriverErrorKind::ResetRequired => "usual fix: reset the GPU, or reboot",
        DriverErrorKind::NoGpus | DriverErrorKind::Unknown => "",
    };
    if !fix.is_empty() {
        writer.indented(fix, theme.plain);
    }
    host_readings(writer, host);
}

/// Draws the CPU load of the host, which still answers. Panes without a box have no footer to show it.
fn host_readings(writer: &mut LineWriter<'_, '_>, host: &Host) {
    let Some(cpu) = host.snapshot.as_ref().and_then(|snapshot| snapshot.host.cpu_percent) else { return };
    let style = writer.canvas.theme.dim;
    writer.gap();
    writer.line(&short!("the host answers: cpu {cpu:.0}%"), style);
}

/// The time since a moment, for a title: `4m12s` below an hour.
pub(super) fn since_text(since: Moment, now: Moment) -> ShortString {
    short!("{}", duration(now.since(since), DurationStyle::Ticking))
}
