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

use super::flow::Flow;
use super::pen::Pen;
use super::{gpu_detail, gpu_table, host_cards, host_facts, host_state, list};
use crate::app::host_shape::HostShape;
use crate::app::{App, HostFigures};
use crate::fleet::{Host, Moment};
use ratatui::layout::Rect;

/// Draws a host in full.
pub(super) fn draw(pen: &mut Pen<'_>, body: Rect, app: &App, host: &Host, shape: HostShape, now: Moment) {
    let Some(figures) = app.figures(host) else { return };
    let facts = Rect { x: body.x + 1, width: body.width.saturating_sub(2), height: shape.facts_rows, ..body };
    draw_facts(pen, facts, app, host, figures, now);
    let gpus = Rect { y: facts.bottom(), height: shape.gpu_rows(), ..body };
    let detail = Rect { y: gpus.bottom(), height: shape.detail_rows, ..body };
    if gpus.height > 0 && host_state::shows_gpus(app, host, figures) {
        match shape.cards {
            Some(cards) => host_cards::draw(pen, gpus, app, host, figures, cards, now),
            None => gpu_table::draw(pen, gpus, app.screen(), figures, usize::from(shape.gpus_shown), now),
        }
        if let Some(gpu) = figures.gpus.get(app.screen().gpu) {
            gpu_detail::draw(pen, detail, host, gpu, app.screen().gpu);
        }
        if !figures.is_fresh {
            pen.dim(Rect { y: gpus.y + 1, height: detail.bottom().saturating_sub(gpus.y + 1), ..body });
        }
    } else if gpus.height > 0 {
        pen.repeat(body.x, gpus.y, body.width, pen.theme.glyphs.light.horizontal, pen.theme.dim);
        let height = (gpus.height + detail.height).saturating_sub(1);
        let inside = Rect { x: body.x + 1, y: gpus.y + 1, width: body.width.saturating_sub(2), height };
        host_state::draw(pen, inside, app, host, figures, now);
    }
    let y = detail.bottom();
    let processes = Rect { y, height: shape.list_rows.min(body.bottom().saturating_sub(y)), ..body };
    list::draw(pen, processes, app, now);
}

/// As many lines as there is room for; where there are few, the last are joined and lose what matters least.
fn draw_facts(pen: &mut Pen<'_>, area: Rect, app: &App, host: &Host, figures: &HostFigures, now: Moment) {
    let mut lines = vec![host_facts::who(pen, app, host, figures, now), host_facts::load(pen, host)];
    let (disks, probe) = (host_facts::disks_and_health(pen, app, host), host_facts::probe(pen, host));
    if area.height > 3 {
        lines.extend([disks, probe]);
    } else {
        let mut joined = probe;
        joined.append(3, disks);
        lines.push(joined);
    }
    let mut flow = Flow::new(pen, area);
    for line in lines {
        flow.segments(line);
    }
}
