//! How one host's full pane is divided.
//!
//! ```text
//! facts of the host                     2 to 4 rows
//! GPUs: a card with a chart each        where every card has room for four readings
//!    or a line each                     title, heads, as many as there are
//! the selected GPU in full              up to 8 rows
//! its processes                         the rest
//! ```

use super::layout::{LIST_FRAME_ROWS, SHARED_BODY_ROWS};

/// Rows of the GPU table that are not GPUs: its title and its column heads.
pub const TABLE_HEADER_ROWS: u16 = 2;
/// The fewest columns of a card: its readings, the figures of the axis, and a chart of forty points.
pub const CARD_MIN_COLUMNS: u16 = 46;
/// The fewest rows of a card: its title and four readings.
const CARD_MIN_ROWS: u16 = 5;
/// A card that fills the screen says no more than one of this many rows.
const CARD_MAX_ROWS: u16 = 13;
/// The rows of cards when several stand below each other: what is left goes to the selected GPU and the processes.
const CARD_TARGET_ROWS: u16 = 8;
/// The row below the cards that tells the times of all charts above it.
pub const TIME_AXIS_ROWS: u16 = 1;
/// Rows for the selected GPU below a table.
const DETAIL_ROWS: u16 = 6;
/// Rows for the selected GPU below cards: less is not worth a title.
const DETAIL_BELOW_CARDS: (u16, u16) = (6, 9);

/// The division of one host's full pane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostLayout {
    /// Rows for facts of the host.
    pub facts_rows: u16,
    /// The cards, where there is room for them; else the GPUs stand in a table.
    pub cards: Option<Cards>,
    /// GPUs that are on the screen at once; 0 when none are shown.
    pub visible_gpus: u16,
    /// Rows for the selected GPU.
    pub detail_rows: u16,
    /// Rows of the list, its frame included.
    pub list_rows: u16,
}

/// GPUs as cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cards {
    /// Side by side.
    pub per_row: u16,
    /// Below each other.
    pub rows_of_cards: u16,
    /// Columns of one, the gap beside it included.
    pub columns: u16,
    /// Rows of one, its title included.
    pub rows: u16,
}

impl Cards {
    /// Rows of all of them with the times below.
    pub fn all_rows(&self) -> u16 {
        self.rows_of_cards * self.rows + TIME_AXIS_ROWS
    }
}

impl HostLayout {
    /// Rows of table or cards.
    pub fn gpu_rows(&self) -> u16 {
        match self.cards {
            Some(cards) => cards.all_rows(),
            None if self.visible_gpus == 0 => 0,
            None => self.visible_gpus + TABLE_HEADER_ROWS,
        }
    }
}

/// Divides one host's full pane on a screen of this size.
pub fn compute_host_layout(size: (u16, u16), gpus: usize, is_list_focused: bool) -> HostLayout {
    let body = size.1.saturating_sub(2);
    let facts_rows = match body {
        0..SHARED_BODY_ROWS => 2.min(body),
        SHARED_BODY_ROWS..32 => 3,
        _ => 4,
    };
    let rest = body - facts_rows;
    let gpus = gpus.clamp(1, 512) as u16;
    if body < SHARED_BODY_ROWS {
        if is_list_focused {
            return HostLayout { facts_rows, list_rows: rest, ..HostLayout::default() };
        }
        let visible_gpus = gpus.min(rest.saturating_sub(TABLE_HEADER_ROWS)).max(1);
        let detail_rows = rest.saturating_sub(TABLE_HEADER_ROWS + visible_gpus).min(DETAIL_ROWS);
        return HostLayout { facts_rows, visible_gpus, detail_rows, ..HostLayout::default() };
    }
    // Two processes must be visible, and GPUs come before details.
    let list_min_rows = LIST_FRAME_ROWS + 2;
    let room = rest.saturating_sub(list_min_rows.max(body / 4));
    if let Some(cards) = cards(size.0, room, gpus) {
        let left = room - cards.all_rows();
        let (least, most) = DETAIL_BELOW_CARDS;
        let detail_rows = if left >= least { left.min(most) } else { 0 };
        let list_rows = rest - cards.all_rows() - detail_rows;
        return HostLayout { facts_rows, cards: Some(cards), visible_gpus: gpus, detail_rows, list_rows };
    }
    let visible_gpus = gpus.min(rest - list_min_rows - TABLE_HEADER_ROWS);
    let rest = rest - TABLE_HEADER_ROWS - visible_gpus;
    let detail_rows = (rest - list_min_rows).min(DETAIL_ROWS);
    HostLayout { facts_rows, cards: None, visible_gpus, detail_rows, list_rows: rest - detail_rows }
}

/// The cards that fit into so many rows: none of them left over beside an empty place where that can be had, then as few
/// side by side as leave each its usual height.
fn cards(columns: u16, rows: u16, gpus: u16) -> Option<Cards> {
    let rows = rows.checked_sub(TIME_AXIS_ROWS)?;
    let max_per_row = (columns / CARD_MIN_COLUMNS).min(gpus);
    (1..=max_per_row)
        .filter_map(|per_row| {
            let rows_of_cards = gpus.div_ceil(per_row);
            let most = if rows_of_cards == 1 { CARD_MAX_ROWS } else { CARD_TARGET_ROWS };
            let card_rows = (rows / rows_of_cards).min(most);
            let columns = columns / per_row;
            (card_rows >= CARD_MIN_ROWS).then_some(Cards { per_row, rows_of_cards, columns, rows: card_rows })
        })
        .max_by_key(|cards| {
            let empty = cards.per_row * cards.rows_of_cards - gpus;
            let height = cards.rows.min(CARD_TARGET_ROWS);
            (height, std::cmp::Reverse(empty), std::cmp::Reverse(cards.per_row))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::layout::MIN_SIZE;
    use proptest::prelude::*;

    fn card_grid(size: (u16, u16), gpus: usize) -> Option<(u16, u16, u16)> {
        compute_host_layout(size, gpus, false).cards.map(|cards| (cards.per_row, cards.rows_of_cards, cards.rows))
    }

    #[test]
    fn cards_stand_where_each_has_room_for_its_readings() {
        assert_eq!(card_grid((120, 40), 1), Some((1, 1, 13)));
        assert_eq!(card_grid((120, 40), 4), Some((2, 2, 8)));
        assert_eq!(card_grid((120, 40), 8), Some((2, 4, 6)));
        assert_eq!(card_grid((120, 40), 16), None);
        assert_eq!(card_grid((200, 60), 8), Some((2, 4, 8)));
        assert_eq!(card_grid((200, 60), 16), Some((4, 4, 8)));
        assert_eq!(card_grid((80, 24), 8), None);
        assert_eq!(card_grid((80, 24), 1), Some((1, 1, 13)));
    }

    #[test]
    fn a_table_shows_gpus_before_details_before_processes() {
        let small = compute_host_layout((80, 24), 8, false);
        let expected = HostLayout { facts_rows: 3, cards: None, visible_gpus: 8, detail_rows: 4, list_rows: 5 };
        assert_eq!(small, expected);
        let tiny = compute_host_layout((80, 16), 8, true);
        assert_eq!((tiny.visible_gpus, tiny.list_rows), (0, 12));
    }

    proptest! {
        #[test]
        fn a_host_in_full_stays_within_the_screen(
            columns in 1u16..300, rows in 1u16..90, gpus in 0usize..140, is_list_focused: bool
        ) {
            let layout = compute_host_layout((columns, rows), gpus, is_list_focused);
            let used = layout.facts_rows + layout.gpu_rows() + layout.detail_rows + layout.list_rows;
            prop_assert!(rows < MIN_SIZE.1 || used <= rows - 2, "{:?}", layout);
            if let Some(cards) = layout.cards {
                prop_assert!(cards.per_row * cards.columns <= columns);
                prop_assert!(usize::from(cards.per_row * cards.rows_of_cards) >= gpus);
            }
        }
    }
}
