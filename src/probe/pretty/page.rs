//! The page from top to bottom.

use super::lines::{Lines, or_dash, time};
use super::{gpu, host, process};
use crate::wire::{Hello, Inventory, Snapshot};

/// The whole text, newline included.
pub(crate) fn pretty(hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) -> String {
    let mut lines = Lines::default();
    host::write(&mut lines, hello, inventory, snapshot);
    for (info, position) in inventory.gpus.iter().zip(0..) {
        let past = snapshot.recent_past.iter().find(|past| usize::from(past.gpu) == position);
        gpu::write(&mut lines, info, &snapshot.gpus.row(position), &snapshot.health.row(position), past);
    }
    process::write(&mut lines, inventory, snapshot);
    if !snapshot.notes.is_empty() || !snapshot.xid_events.is_empty() {
        lines.line("");
    }
    for event in &snapshot.xid_events {
        let gpu = event.gpu.and_then(|gpu| inventory.gpus.get(usize::from(gpu))).map(|info| info.index);
        let age = time(snapshot.monotonic_seconds - event.monotonic_seconds);
        lines.line(format!("Xid {} on GPU {}, {age} ago", event.xid, or_dash(gpu)));
    }
    for note in &snapshot.notes {
        lines.line(format!("note: {note}"));
    }
    lines.finish()
}
