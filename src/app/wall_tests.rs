use super::*;
use crate::config::HostConfig;
use crate::fleet::Moment;
use proptest::prelude::*;
use std::sync::Arc;

fn fleet(groups: &[Option<&str>]) -> Fleet {
    let config = |(index, group): (usize, Option<&str>)| {
        let mut config = HostConfig::named(format!("n{index:03}"));
        config.group = group.map(Into::into);
        Arc::new(config)
    };
    Fleet::new(&groups.iter().copied().enumerate().map(config).collect::<Vec<_>>(), false, Moment::default())
}

#[test]
fn hosts_stand_under_their_group_and_those_without_one_last() {
    use WallLine::{Heading, Host};
    let lines = wall_lines(&fleet(&[None, Some("b"), Some("a"), Some("b")]), |_| true);
    assert_eq!(lines, [Heading(1), Host(1), Host(3), Heading(2), Host(2), Heading(0), Host(0)]);
    assert_eq!(wall_lines(&fleet(&[None, None]), |_| true), [Host(0), Host(1)]);
    assert_eq!(wall_lines(&fleet(&[]), |_| true), []);
}

#[test]
fn the_sizes_of_the_sheet() {
    let layout = |size, hosts| {
        let layout = compute_wall_layout(size, hosts, 8, 6);
        (layout.per_row, layout.rows, layout.is_spaced, layout.status_columns > 0, layout.panel_rows > 8)
    };
    assert_eq!(layout((120, 38), 64), (4, 16, true, false, true));
    assert_eq!(layout((80, 22), 64), (4, 16, false, false, false));
    assert_eq!(layout((200, 58), 64), (4, 16, true, true, true));
    assert_eq!(layout((120, 38), 4), (1, 4, true, true, true));
}

#[test]
fn arrows_go_from_gpu_to_gpu_and_from_host_to_host() {
    let lines = wall_lines(&fleet(&[Some("a"), Some("a"), Some("b"), Some("b")]), |_| true);
    let layout = WallLayout { per_row: 2, rows: 3, cells: 8, ..WallLayout::default() };
    let mut cursor = WallCursor::default();
    let mut navigate = |actions: &[Action]| {
        for action in actions {
            cursor.navigate(*action, &lines, &layout, |_| 2);
        }
        (cursor.host, cursor.gpu)
    };
    assert_eq!(navigate(&[Action::Right]), (0, 1));
    assert_eq!(navigate(&[Action::Right]), (2, 0), "the host beside it in the next column");
    assert_eq!(navigate(&[Action::Left]), (0, 1), "back to where it came from");
    assert_eq!(navigate(&[Action::Down, Action::Down]), (2, 1), "over the heading");
    assert_eq!(navigate(&[Action::Up, Action::Up, Action::Up]), (0, 1));
    assert_eq!(navigate(&[Action::Last]), (3, 1));
}

proptest! {
    #[test]
    fn every_division_stays_within_the_screen_and_the_place_on_it(
        columns in 40u16..300, body in 8u16..90, hosts in 1usize..500, gpus in 0usize..130, name in 0usize..40,
        steps in proptest::collection::vec(0usize..6, 0..20)
    ) {
        let layout = compute_wall_layout((columns, body), hosts, gpus, name);
        prop_assert!(layout.rows + LEGEND_ROWS + layout.panel_rows <= body, "{:?}", layout);
        prop_assert!(layout.per_row * layout.columns <= columns);
        prop_assert!(layout.rows >= 1 && layout.cells >= 1);
        let lines = wall_lines(&fleet(&vec![None; hosts]), |_| true);
        let mut cursor = WallCursor::default();
        let actions = [Action::Up, Action::Down, Action::Left, Action::Right, Action::PageDown, Action::Last];
        for step in steps {
            cursor.navigate(actions[step], &lines, &layout, |_| gpus);
            prop_assert!(cursor.host < hosts && (gpus == 0 || cursor.gpu < gpus));
            prop_assert!(cursor.top <= cursor.host && cursor.host < cursor.top + layout.capacity().max(1), "{:?}", cursor);
        }
    }
}
