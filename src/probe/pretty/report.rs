//! The page from top to bottom.

use super::report_writer::{ReportWriter, or_dash, time};
use super::{gpu, host, process};
use crate::wire::{Hello, Inventory, Snapshot};

/// The whole text, newline included.
pub(crate) fn pretty(hello: &Hello, inventory: &Inventory, snapshot: &Snapshot) -> String {
    let mut report = ReportWriter::default();
    host::write(&mut report, hello, inventory, snapshot);
    for (info, position) in inventory.gpus.iter().zip(0..) {
        let samples = snapshot.recent_past.iter().find(|samples| usize::from(samples.gpu) == position);
        gpu::write(&mut report, info, &snapshot.gpus.row(position), &snapshot.health.row(position), samples);
    }
    process::write(&mut report, inventory, snapshot);
    if !snapshot.notes.is_empty() || !snapshot.xid_events.is_empty() {
        report.line("");
    }
    for event in &snapshot.xid_events {
        let gpu = event.gpu.and_then(|gpu| inventory.gpus.get(usize::from(gpu))).map(|info| info.index);
        let age = time(snapshot.monotonic_seconds - event.monotonic_seconds);
        report.line(format!("Xid {} on GPU {}, {age} ago", event.xid, or_dash(gpu)));
    }
    for note in &snapshot.notes {
        report.line(format!("note: {note}"));
    }
    report.finish()
}
