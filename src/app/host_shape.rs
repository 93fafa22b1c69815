//! How one host's full pane is divided.
//!
//! ```text
//! facts of the host                     2 to 4 rows
//! GPUs: a card with a chart each        where every card has room for four readings
//!    or a line each                     title, heads, as many as there are
//! the selected GPU in full              up to 8 rows
//! its processes                         the rest
//! ```

use super::arrange::{LIST_FRAME_ROWS, SHARED_BODY_ROWS};

/// Rows of the GPU table that are not GPUs: its title and its column heads.
pub const TABLE_HEAD_ROWS: u16 = 2;
/// The fewest columns of a card: its readings, the figures of the axis, and a chart of forty points.
pub const CARD_MIN_COLUMNS: u16 = 46;
/// The fewest rows of a card: its title and four readings.
const CARD_MIN_ROWS: u16 = 5;
/// A card that fills the screen says no more than one of this many rows.
const CARD_MAX_ROWS: u16 = 13;
/// The rows of cards when several stand below each other: what is left goes to the selected GPU and the processes.
const CARD_USUAL_ROWS: u16 = 8;
/// The row below the cards that tells the times of all charts above it.
pub const TIME_AXIS_ROWS: u16 = 1;
/// Rows for the selected GPU below a table.
const DETAIL_ROWS: u16 = 6;
/// Rows for the selected GPU below cards: less is not worth a title.
const DETAIL_BELOW_CARDS: (u16, u16) = (6, 9);

/// The division of one host's full pane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostShape {
    /// Rows for facts of the host.
    pub facts_rows: u16,
    /// The cards, where there is room for them; else the GPUs stand in a table.
    pub cards: Option<Cards>,
    /// GPUs that are on the screen at once; 0 when none are shown.
    pub gpus_shown: u16,
    /// Rows for the selected GPU.
    pub detail_rows: u16,
    /// Rows of the list, its frame included.
    pub list_rows: u16,
}

/// GPUs as cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cards {
    /// Side by side.
    pub across: u16,
    /// Below each other.
    pub down: u16,
    /// Columns of one, the gap beside it included.
    pub columns: u16,
    /// Rows of one, its title included.
    pub rows: u16,
}

impl Cards {
    /// Rows of all of them with the times below.
    pub fn all_rows(&self) -> u16 {
        self.down * self.rows + TIME_AXIS_ROWS
    }
}

impl HostShape {
    /// Rows of table or cards.
    pub fn gpu_rows(&self) -> u16 {
        match self.cards {
            Some(cards) => cards.all_rows(),
            None if self.gpus_shown == 0 => 0,
            None => self.gpus_shown + TABLE_HEAD_ROWS,
        }
    }
}

/// Divides one host's full pane on a screen of this size.
pub fn arrange_host(size: (u16, u16), gpus: usize, list_focused: bool) -> HostShape {
    let body = size.1.saturating_sub(2);
    let facts_rows = match body {
        0..SHARED_BODY_ROWS => 2.min(body),
        SHARED_BODY_ROWS..32 => 3,
        _ => 4,
    };
    let rest = body - facts_rows;
    let gpus = gpus.clamp(1, 512) as u16;
    if body < SHARED_BODY_ROWS {
        if list_focused {
            return HostShape { facts_rows, list_rows: rest, ..HostShape::default() };
        }
        let gpus_shown = gpus.min(rest.saturating_sub(TABLE_HEAD_ROWS)).max(1);
        let detail_rows = rest.saturating_sub(TABLE_HEAD_ROWS + gpus_shown).min(DETAIL_ROWS);
        return HostShape { facts_rows, gpus_shown, detail_rows, ..HostShape::default() };
    }
    // Two processes must be visible, and GPUs come before details.
    let list_least = LIST_FRAME_ROWS + 2;
    let room = rest.saturating_sub(list_least.max(body / 4));
    if let Some(cards) = cards(size.0, room, gpus) {
        let left = room - cards.all_rows();
        let (least, most) = DETAIL_BELOW_CARDS;
        let detail_rows = if left >= least { left.min(most) } else { 0 };
        let list_rows = rest - cards.all_rows() - detail_rows;
        return HostShape { facts_rows, cards: Some(cards), gpus_shown: gpus, detail_rows, list_rows };
    }
    let gpus_shown = gpus.min(rest - list_least - TABLE_HEAD_ROWS);
    let rest = rest - TABLE_HEAD_ROWS - gpus_shown;
    let detail_rows = (rest - list_least).min(DETAIL_ROWS);
    HostShape { facts_rows, cards: None, gpus_shown, detail_rows, list_rows: rest - detail_rows }
}

/// The cards that fit into so many rows: none of them left over beside an empty place where that can be had, then as few
/// side by side as leave each its usual height.
fn cards(columns: u16, rows: u16, gpus: u16) -> Option<Cards> {
    let rows = rows.checked_sub(TIME_AXIS_ROWS)?;
    let most_across = (columns / CARD_MIN_COLUMNS).min(gpus);
    (1..=most_across)
        .filter_map(|across| {
            let down = gpus.div_ceil(across);
            let most = if down == 1 { CARD_MAX_ROWS } else { CARD_USUAL_ROWS };
            let card_rows = (rows / down).min(most);
            let columns = columns / across;
            (card_rows >= CARD_MIN_ROWS).then_some(Cards { across, down, columns, rows: card_rows })
        })
        .max_by_key(|cards| {
            let empty = cards.across * cards.down - gpus;
            let height = cards.rows.min(CARD_USUAL_ROWS);
            (height, std::cmp::Reverse(empty), std::cmp::Reverse(cards.across))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::arrange::MIN_SIZE;
    use proptest::prelude::*;

    fn across_and_down(size: (u16, u16), gpus: usize) -> Option<(u16, u16, u16)> {
        arrange_host(size, gpus, false).cards.map(|cards| (cards.across, cards.down, cards.rows))
    }

    #[test]
    fn cards_stand_where_each_has_room_for_its_readings() {
        assert_eq!(across_and_down((120, 40), 1), Some((1, 1, 13)));
        assert_eq!(across_and_down((120, 40), 4), Some((2, 2, 8)));
        assert_eq!(across_and_down((120, 40), 8), Some((2, 4, 6)));
        assert_eq!(across_and_down((120, 40), 16), None);
        assert_eq!(across_and_down((200, 60), 8), Some((2, 4, 8)));
        assert_eq!(across_and_down((200, 60), 16), Some((4, 4, 8)));
        assert_eq!(across_and_down((80, 24), 8), None);
        assert_eq!(across_and_down((80, 24), 1), Some((1, 1, 13)));
    }

    #[test]
    fn a_table_shows_gpus_before_details_before_processes() {
        let small = arrange_host((80, 24), 8, false);
        let expected = HostShape { facts_rows: 3, cards: None, gpus_shown: 8, detail_rows: 4, list_rows: 5 };
        assert_eq!(small, expected);
        let tiny = arrange_host((80, 16), 8, true);
        assert_eq!((tiny.gpus_shown, tiny.list_rows), (0, 12));
    }

    proptest! {
        #[test]
        fn a_host_in_full_stays_within_the_screen(
            columns in 1u16..300, rows in 1u16..90, gpus in 0usize..140, list_focused: bool
        ) {
            let shape = arrange_host((columns, rows), gpus, list_focused);
            let used = shape.facts_rows + shape.gpu_rows() + shape.detail_rows + shape.list_rows;
            prop_assert!(rows < MIN_SIZE.1 || used <= rows - 2, "{:?}", shape);
            if let Some(cards) = shape.cards {
                prop_assert!(cards.across * cards.columns <= columns);
                prop_assert!(usize::from(cards.across * cards.down) >= gpus);
            }
        }
    }
}
