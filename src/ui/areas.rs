//! Screen geometry: the rectangles of the layout that [`crate::app::layout`] computes, and of tables and dialogs.

use crate::app::layout::{GridLayout, INNER_GAP, PaneFrame, ScreenLayout};
use ratatui::layout::{Margin, Rect};

/// The parts of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScreenAreas {
    pub(super) header: Rect,
    /// Everything between the header and the hint bar.
    pub(super) body: Rect,
    /// The upper part of the body, for the grid.
    pub(super) grid: Rect,
    /// The lower part of the body, for the list.
    pub(super) list: Rect,
    pub(super) hints: Rect,
}

impl ScreenAreas {
    /// Divides `area`, which has the size that `screen_layout` was computed for.
    pub(super) fn of(area: Rect, screen_layout: &ScreenLayout) -> Self {
        let header = Rect { height: area.height.min(1), ..area };
        let body = Rect { y: area.y + header.height, height: area.height.saturating_sub(2), ..area };
        let grid_rows = if screen_layout.list_rows == 0 {
            body.height
        } else {
            screen_layout.grid.map_or(0, |grid| grid.rows()).min(body.height)
        };
        let grid = Rect { height: grid_rows, ..body };
        let list = Rect { y: body.y + grid_rows, height: body.height - grid_rows, ..body };
        let hints = Rect { y: body.bottom(), height: area.height.saturating_sub(1).min(1), ..area };
        Self { header, body, grid, list, hints }
    }
}

/// Returns the rectangle of a pane with its frame. Index 0 is the first visible pane.
pub(super) fn pane(grid: Rect, layout: &GridLayout, pane_index: usize) -> Rect {
    let per_row = usize::from(layout.per_row).max(1);
    let (row, column) = ((pane_index / per_row) as u16, (pane_index % per_row) as u16);
    // Panes without a box keep one empty column between neighbours.
    let gap = u16::from(layout.per_row > 1 && layout.frame != PaneFrame::Boxed);
    let area = Rect {
        x: grid.x + column * layout.pane_columns,
        y: grid.y + row * layout.pane_rows,
        width: layout.pane_columns - gap,
        height: layout.pane_rows,
    };
    area.intersection(grid)
}

/// Returns the area inside the frame of a pane.
pub(super) fn inner(pane: Rect, frame: PaneFrame) -> Rect {
    match frame {
        PaneFrame::Bare => pane,
        PaneFrame::Rule => Rect { y: pane.y + pane.height.min(1), height: pane.height.saturating_sub(1), ..pane },
        PaneFrame::Boxed => pane.inner(Margin::new(1, 1)),
    }
}

/// Returns the line of the GPU at `position` inside a pane. Columns are filled from top to bottom, left to right.
pub(super) fn gpu_cell(inner: Rect, layout: &GridLayout, position: usize) -> Option<Rect> {
    let rows = usize::from(inner.height);
    if rows == 0 || position >= rows * usize::from(layout.inner_columns) {
        return None;
    }
    let (column, row) = ((position / rows) as u16, (position % rows) as u16);
    let x = inner.x + column * (layout.cell_columns + INNER_GAP);
    Some(Rect { x, y: inner.y + row, width: layout.cell_columns, height: 1 })
}

/// A column of a table: what it shows, its header, its width and its priority. Columns with the lowest priority are
/// dropped first.
pub(super) type TableColumn<C> = (C, &'static str, u16, u8);

/// Drops columns of a table until the rest fits into `width`, with one empty column between two.
pub(super) fn fitting_columns<C: Copy>(columns: &[TableColumn<C>], width: u16) -> Vec<TableColumn<C>> {
    let mut columns = columns.to_vec();
    while columns.iter().map(|(_, _, width, _)| width + 1).sum::<u16>() > width + 1 && columns.len() > 1 {
        let lowest = columns.iter().map(|(_, _, _, priority)| *priority).min();
        columns.retain(|(_, _, _, priority)| Some(*priority) != lowest);
    }
    columns
}

/// Returns a box of at most this size in the middle of `area`.
pub(super) fn centered(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::layout::{LayoutInputs, compute_layout};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn panes_lie_in_the_grid_and_never_overlap(
            columns in 40u16..300, rows in 10u16..90, hosts in 1usize..65, gpus in 0usize..17
        ) {
            let screen_layout = compute_layout((columns, rows), LayoutInputs { hosts, gpus, ..LayoutInputs::default() });
            let areas = ScreenAreas::of(Rect::new(0, 0, columns, rows), &screen_layout);
            prop_assert_eq!(areas.header.height + areas.grid.height + areas.list.height + areas.hints.height, rows);
            let layout = screen_layout.grid.expect("a grid");
            let panes: Vec<Rect> = (0..hosts.min(layout.visible_panes())).map(|pane_index| pane(areas.grid, &layout, pane_index)).collect();
            for (index, area) in panes.iter().enumerate() {
                prop_assert_eq!(area.height, layout.pane_rows, "{:?} {:?}", layout, area);
                prop_assert!(areas.grid.union(*area) == areas.grid);
                prop_assert!(panes[index + 1..].iter().all(|other| !area.intersects(*other)));
                let inner = inner(*area, layout.frame);
                for position in 0..gpus {
                    if let Some(cell) = gpu_cell(inner, &layout, position) {
                        prop_assert!(inner.union(cell) == inner, "{:?} {:?} {:?}", layout, inner, cell);
                    } else {
                        prop_assert_eq!(layout.pane_rows, 1);
                    }
                }
            }
        }
    }

    #[test]
    fn a_centered_box_is_cut_to_the_screen() {
        assert_eq!(centered(Rect::new(0, 0, 80, 24), 60, 10), Rect::new(10, 7, 60, 10));
        assert_eq!(centered(Rect::new(0, 0, 40, 8), 60, 10), Rect::new(0, 0, 40, 8));
    }
}
