//! What a pane says while there are no current figures: connecting, down, stale, waiting for a person, no driver.
//!
//! ```text
//! ╭─ hgx-07 ──────────────── connecting ─╮╭─ hgx-08 ──────────────── DOWN 4m12s ─╮
//! │⠹ attempt 1   3.1 s                   ││x no route to host (tcp 22)           │
//! │                                      ││                                      │
//! │✓ name                                ││last seen 13:58:19  6 busy 2 free     │
//! │✓ tcp                                 ││                                      │
//! │⠹ key exchange                        ││5th try in 27 s       r tries now     │
//! ╰──────────────────────────────────────╯╰──────────────────────────────────────╯
//! ```

use super::flow::Flow;
use super::format::{Short, clock, interval, short, span};
use super::pane::since_words;
use super::pen::Pen;
use super::segments::Segments;
use super::theme::Theme;
use crate::app::arrange::GridShape;
use crate::app::{App, HostFigures};
use crate::fleet::{Host, Link, LinkError, LinkErrorKind, Moment, Phase};
use crate::ssh::prompt::{Prompt, PromptKind};
use crate::wire::{DriverError, DriverErrorKind, SafeText};
use ratatui::layout::Rect;
use ratatui::style::Style;
use std::cmp::Ordering;
use std::time::Duration;

/// For how long a host that came back with another boot id says so in its title.
const REBOOT_TOLD: Duration = Duration::from_secs(60);

/// Whether the pane shows GPUs, perhaps old ones, and not the reason why it cannot.
pub(super) fn shows_gpus(app: &App, host: &Host, figures: &HostFigures) -> bool {
    !figures.gpus.is_empty()
        && matches!(host.link, Link::Live | Link::Stale { .. })
        && driver_error(host).is_none()
        && app.prompts().of_host(host.name()).is_none()
}

/// The word in the title in place of sums; `None` for a host that is well.
pub(super) fn word(app: &App, host: &Host, figures: &HostFigures, now: Moment) -> Option<(Short, Style)> {
    let theme = Theme::new(app.settings);
    if app.prompts().of_host(host.name()).is_some() {
        return Some((short!("NEEDS YOU  P"), theme.warn));
    }
    match &host.link {
        Link::Connecting { .. } => Some((short!("connecting"), theme.dim)),
        Link::Down { .. } if host.link.is_refused() => Some((short!("refused"), theme.dim)),
        Link::Down { since, .. } => Some((short!("DOWN {}", since_words(*since, now).as_str()), theme.warn)),
        Link::NeedsUser { .. } => Some((short!("NEEDS YOU"), theme.warn)),
        Link::Stale { since } => Some((short!("STALE {}", since_words(*since, now).as_str()), theme.warn)),
        Link::Live if driver_error(host).is_some() => Some((short!("NO GPU DATA"), theme.warn)),
        Link::Live if host.inventory.is_none() || host.snapshot.is_none() => Some((short!("first sample"), theme.dim)),
        Link::Live if !figures.is_fresh => {
            let age = host.received_at.map_or_else(|| short!("-"), |at| since_words(at, now));
            Some((short!("STALE {}", age.as_str()), theme.warn))
        }
        Link::Live => host.rebooted_at.filter(|at| now.since(*at) < REBOOT_TOLD).map(|at| {
            // The sums come back when whoever looked away has had time to see it.
            (short!("REBOOTED {}", since_words(at, now).as_str()), theme.warn)
        }),
    }
}

/// Why the driver of a connected host gives no readings.
pub(super) fn driver_error(host: &Host) -> Option<&DriverError> {
    let now = host.snapshot.as_ref().and_then(|snapshot| snapshot.driver_error.as_ref());
    now.or_else(|| host.inventory.as_ref().and_then(|inventory| inventory.error.as_ref()))
}

/// Draws the reason, most important first: a low pane shows its beginning.
pub(super) fn draw(pen: &mut Pen<'_>, area: Rect, app: &App, host: &Host, figures: &HostFigures, now: Moment) {
    let mut flow = Flow::new(pen, area);
    if let Some(prompt) = app.prompts().of_host(host.name()) {
        waiting_prompt(&mut flow, prompt, app.prompts().count());
        return;
    }
    match &host.link {
        Link::Connecting { attempt, phase, since } => {
            connecting(&mut flow, app, host, figures, (*attempt, *phase, *since), now);
        }
        Link::Down { error, retry_at, attempt, .. } => {
            match retry_at {
                Some(at) => {
                    let seconds = now.until(*at).as_secs_f64().ceil();
                    let next = short!("{} try in {seconds:.0} s", ordinal(attempt.saturating_add(1)).as_str());
                    flow.pin_to_bottom(&next, "r tries now");
                }
                None => flow.pin_to_bottom("waits for you", "r tries now"),
            }
            failed(&mut flow, "x", error);
            last_seen(&mut flow, app, host, figures);
        }
        Link::NeedsUser { error, .. } => {
            flow.pin_to_bottom("not tried again unasked", "r tries now");
            failed(&mut flow, if error.kind == LinkErrorKind::HostKeyUnknown { "k" } else { "p" }, error);
            last_seen(&mut flow, app, host, figures);
        }
        Link::Live | Link::Stale { .. } => {
            if let Some(error) = driver_error(host) {
                no_driver(&mut flow, host, error);
            } else {
                let spinner = spinner(flow.pen.theme, now);
                flow.marked(spinner, "connected; the driver is being asked", flow.pen.theme.dim);
                host_readings(&mut flow, host);
            }
        }
    }
}

/// Below stale figures, where a line is left: since when, and how slow the link was.
pub(super) fn below_gpus(
    pen: &mut Pen<'_>,
    area: Rect,
    shape: &GridShape,
    figures: &HostFigures,
    host: &Host,
    now: Moment,
) {
    let rows = figures.gpus.len().div_ceil(usize::from(shape.inner_columns).max(1)) as u16;
    if figures.is_fresh || rows + 1 >= area.height {
        return;
    }
    let theme = pen.theme;
    let mut flow = Flow::new(pen, Rect { y: area.y + rows + 1, height: area.height - rows - 1, ..area });
    let age = host.age(now).map_or_else(|| short!("-"), span);
    flow.marked(
        "~",
        &short!("no sample for {} (expected every {})", age.as_str(), interval(host.interval()).as_str()),
        theme.warn,
    );
    if let Some(round_trip) = host.round_trip {
        flow.line(&short!("  a heartbeat took {}", milliseconds(round_trip).as_str()), theme.dim);
    }
}

/// `23 ms`.
pub(super) fn milliseconds(duration: Duration) -> Short {
    short!("{:.0} ms", duration.as_secs_f64() * 1000.0)
}

/// What is turning while something is waited for, one step a second.
pub(super) fn spinner(theme: &Theme, now: Moment) -> &'static str {
    theme.glyphs.spinner[(now.since_start().as_secs() % 4) as usize]
}

fn connecting(
    flow: &mut Flow<'_, '_>,
    app: &App,
    host: &Host,
    figures: &HostFigures,
    (attempt, phase, since): (u32, Phase, Moment),
    now: Moment,
) {
    const STEPS: [Phase; 6] =
        [Phase::Name, Phase::Tcp, Phase::KeyExchange, Phase::Login, Phase::Probe, Phase::FirstSample];
    let theme = flow.pen.theme;
    let spinner = spinner(theme, now);
    let seconds = now.since(since).as_secs();
    if flow.rows_left() < STEPS.len() as u16 + 2 {
        flow.marked(spinner, &short!("{}  {seconds} s  attempt {attempt}", phase.words()), theme.plain);
        last_seen(flow, app, host, figures);
        return;
    }
    flow.marked(spinner, &short!("attempt {attempt}   {seconds} s"), theme.plain);
    flow.gap();
    if phase == Phase::Queued {
        flow.marked(spinner, phase.words(), theme.plain);
    }
    for step in STEPS {
        let (glyph, style) = match step.cmp(&phase) {
            Ordering::Less => (theme.glyphs.done, theme.dim),
            Ordering::Equal => (spinner, theme.plain),
            Ordering::Greater => (theme.glyphs.free, theme.dim),
        };
        flow.marked(glyph, step.words(), style);
    }
}

fn failed(flow: &mut Flow<'_, '_>, glyph: &str, error: &LinkError) {
    let theme = flow.pen.theme;
    let is_grave = matches!(error.kind, LinkErrorKind::HostKeyChanged | LinkErrorKind::HostKeyRevoked);
    let style = if is_grave { theme.crit } else { theme.warn };
    flow.marked(if is_grave { "!" } else { glyph }, &error.message, style);
    if let Some(hint) = &error.hint {
        flow.indented(hint, theme.plain);
    }
}

fn last_seen(flow: &mut Flow<'_, '_>, app: &App, host: &Host, figures: &HostFigures) {
    let Some(at) = host.received_at else { return };
    flow.gap();
    let theme = flow.pen.theme;
    let mut words = Segments::default();
    words.add(99, 0, short!("last seen {}", clock(at, app.settings.utc_offset_seconds).as_str()), theme.dim);
    let total = figures.gpus.len();
    let users: u32 = figures.gpus.iter().map(|gpu| u32::from(gpu.main_user.is_some())).sum();
    words.add(5, 2, short!("{total} GPUs, {users} in use"), theme.dim);
    flow.segments(words);
    if let Some(names) = main_users(figures) {
        flow.indented(&names, theme.dim);
    }
}

/// `then alice 0-5, bob 6`: who was there when the host was last seen.
fn main_users(figures: &HostFigures) -> Option<String> {
    let mut users: Vec<(&SafeText, Vec<u32>)> = Vec::new();
    for gpu in &figures.gpus {
        let Some(user) = &gpu.main_user else { continue };
        match users.iter_mut().find(|(known, _)| *known == user) {
            Some((_, indexes)) => indexes.push(gpu.index),
            None => users.push((user, vec![gpu.index])),
        }
    }
    let words: Vec<String> =
        users.iter().map(|(user, indexes)| format!("{user} {}", crate::fleet::gpu_list(indexes))).collect();
    (!words.is_empty()).then(|| format!("then {}", words.join(", ")))
}

fn waiting_prompt(flow: &mut Flow<'_, '_>, prompt: &Prompt, waiting: usize) {
    let theme = flow.pen.theme;
    let others = prompt.hosts.len().saturating_sub(1);
    flow.pin_to_bottom("P answers", &short!("{waiting} waiting"));
    match &prompt.kind {
        PromptKind::HostKey { key_type, fingerprint, .. } => {
            flow.marked("k", "host key not known", theme.warn);
            flow.gap();
            flow.line(key_type, theme.plain);
            flow.wrapped(fingerprint, theme.plain);
        }
        PromptKind::Passphrase { path, .. } => {
            flow.marked("p", "key is locked", theme.warn);
            flow.gap();
            flow.wrapped(path, theme.plain);
        }
        PromptKind::Secret { text, .. } => {
            flow.marked("p", "the server asks", theme.warn);
            flow.gap();
            flow.wrapped(&SafeText::new(text), theme.plain);
        }
    }
    if others > 0 {
        flow.line(&short!("also needed by {others} more host{}", if others == 1 { "" } else { "s" }), theme.dim);
    }
}

fn no_driver(flow: &mut Flow<'_, '_>, host: &Host, error: &DriverError) {
    let theme = flow.pen.theme;
    flow.marked("!", &error.message, theme.warn);
    let cure = match error.kind {
        DriverErrorKind::NoLibrary => "usual cure: install the NVIDIA driver there",
        DriverErrorKind::DriverNotLoaded => "usual cure: modprobe nvidia, or reboot",
        DriverErrorKind::VersionMismatch => "usual cure: reboot, or reload nvidia",
        DriverErrorKind::NoPermission => "usual cure: access to /dev/nvidia* for this account",
        DriverErrorKind::Blocked => "the driver has not answered; see dmesg there",
        DriverErrorKind::GpuLost | DriverErrorKind::ResetRequired => "usual cure: a reset of the GPU, or a reboot",
        DriverErrorKind::NoGpus | DriverErrorKind::Unknown => "",
    };
    if !cure.is_empty() {
        flow.indented(cure, theme.plain);
    }
    host_readings(flow, host);
}

/// The host itself is still live: its readings are in the footer of a box, and here where there is none.
fn host_readings(flow: &mut Flow<'_, '_>, host: &Host) {
    let Some(cpu) = host.snapshot.as_ref().and_then(|snapshot| snapshot.host.cpu_percent) else { return };
    let style = flow.pen.theme.dim;
    flow.gap();
    flow.line(&short!("the host itself answers: cpu {cpu:.0}%"), style);
}

/// `1st`, `2nd`, `3rd`, `4th`.
fn ordinal(number: u32) -> Short {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    short!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_counted_as_people_do() {
        let words: Vec<String> = [1, 2, 3, 4, 11, 12, 13, 21, 112].map(|number| ordinal(number).to_string()).into();
        assert_eq!(words, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]);
    }
}
