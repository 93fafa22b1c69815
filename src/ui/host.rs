//! One host in full: its facts, all its GPUs with their history or in a table, the selected GPU, its processes.
//!
//! ```text
//!  hgx-02   8 x NVIDIA H100 80GB HBM3   driver 570.86  CUDA 12.8   Linux 6.8.0  x86_64   up 41d   rtt 23 ms
//!  CPU 13%  load 21.0/19.2/18.4 of 112   RAM 167/1007G  swap 0/8G   net in 1.2G/s out 80M/s   IO wait 3%
//!  disk / 41%  /scratch 91% full  /home (nfs4) 63%   NVLink 144 up   ECC 0   users alice bob carol
//!  login alice  sees the whole host   probe 0.1.0: 0.4 ms a sample, 3M, pid 77   every 2s   note ask Bob first
//! ─ ▸GPU 0 ──────────────────────────────── alice 3h12m torchrun ─  ─ GPU 1 ─────────────── alice 3h12m torchrun ─
//! GPU  97% mem 41%  100%│⠉⠉⠉⠉⠉⠉⠉⡆⢸⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⡆⢸⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⡆⢸⠉⠉
//! ```

use super::canvas::Canvas;
use super::line_writer::LineWriter;
use super::{gpu_detail, gpu_table, host_cards, host_facts, host_state, list};
use crate::app::host_layout::HostLayout;
use crate::app::{App, HostSummary};
use crate::fleet::{Host, Moment};
use ratatui::layout::Rect;

/// Draws a host in full.
pub(super) fn draw(canvas: &mut Canvas<'_>, body: Rect, app: &App, host: &Host, layout: HostLayout, now: Moment) {
    let Some(summary) = app.host_summary(host) else { return };
    let facts = Rect { x: body.x + 1, width: body.width.saturating_sub(2), height: layout.facts_rows, ..body };
    draw_facts(canvas, facts, app, host, summary, now);
    let gpus = Rect { y: facts.bottom(), height: layout.gpu_rows(), ..body };
    let detail = Rect { y: gpus.bottom(), height: layout.detail_rows, ..body };
    if gpus.height > 0 && host_state::shows_gpus(app, host, summary) {
        match layout.cards {
            Some(cards) => host_cards::draw(canvas, gpus, app, host, summary, cards, now),
            None => gpu_table::draw(canvas, gpus, app.screen(), summary, usize::from(layout.visible_gpus), now),
        }
        if let Some(gpu) = summary.gpus.get(app.screen().gpu) {
            gpu_detail::draw(canvas, detail, host, gpu, app.screen().gpu);
        }
        if !summary.is_fresh {
            canvas.dim(Rect { y: gpus.y + 1, height: detail.bottom().saturating_sub(gpus.y + 1), ..body });
        }
    } else if gpus.height > 0 {
        canvas.repeat(body.x, gpus.y, body.width, canvas.theme.glyphs.light.horizontal, canvas.theme.dim);
        let height = (gpus.height + detail.height).saturating_sub(1);
        let inner = Rect { x: body.x + 1, y: gpus.y + 1, width: body.width.saturating_sub(2), height };
        host_state::draw(canvas, inner, app, host, summary, now);
    }
    let y = detail.bottom();
    let processes = Rect { y, height: layout.list_rows.min(body.bottom().saturating_sub(y)), ..body };
    list::draw(canvas, processes, app, now);
}

/// As many lines as there is room for; where there are few, the last are joined and lose what matters least.
fn draw_facts(canvas: &mut Canvas<'_>, area: Rect, app: &App, host: &Host, summary: &HostSummary, now: Moment) {
    let mut lines = vec![host_facts::identity(canvas, app, host, summary, now), host_facts::load(canvas, host)];
    let (disks, probe) = (host_facts::disks_and_health(canvas, app, host), host_facts::probe(canvas, host));
    if area.height > 3 {
        lines.extend([disks, probe]);
    } else {
        let mut joined = probe;
        joined.append(3, disks);
        lines.push(joined);
    }
    let mut writer = LineWriter::new(canvas, area);
    for line in lines {
        writer.segments(line);
    }
}
