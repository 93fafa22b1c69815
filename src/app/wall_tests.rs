use super::*;
use crate::fleet::Moment;
use crate::hosts::HostConfig;
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
    let shape = |size, hosts| {
        let shape = arrange_wall(size, hosts, 8, 6);
        (shape.across, shape.rows, shape.is_spaced, shape.note > 0, shape.panel_rows > 8)
    };
    assert_eq!(shape((120, 38), 64), (4, 16, true, false, true));
    assert_eq!(shape((80, 22), 64), (4, 16, false, false, false));
    assert_eq!(shape((200, 58), 64), (4, 16, true, true, true));
    assert_eq!(shape((120, 38), 4), (1, 4, true, true, true));
}

#[test]
fn arrows_go_from_gpu_to_gpu_and_from_host_to_host() {
    let lines = wall_lines(&fleet(&[Some("a"), Some("a"), Some("b"), Some("b")]), |_| true);
    let shape = WallShape { across: 2, rows: 3, cells: 8, ..WallShape::default() };
    let mut place = WallPlace::default();
    let mut go = |actions: &[Action]| {
        for action in actions {
            place.go(*action, &lines, &shape, |_| 2);
        }
        (place.host, place.gpu)
    };
    assert_eq!(go(&[Action::Right]), (0, 1));
    assert_eq!(go(&[Action::Right]), (2, 0), "the host beside it in the next column");
    assert_eq!(go(&[Action::Left]), (0, 1), "back to where it came from");
    assert_eq!(go(&[Action::Down, Action::Down]), (2, 1), "over the heading");
    assert_eq!(go(&[Action::Up, Action::Up, Action::Up]), (0, 1));
    assert_eq!(go(&[Action::Last]), (3, 1));
}

proptest! {
    #[test]
    fn every_division_stays_within_the_screen_and_the_place_on_it(
        columns in 40u16..300, body in 8u16..90, hosts in 1usize..500, gpus in 0usize..130, name in 0usize..40,
        steps in proptest::collection::vec(0usize..6, 0..20)
    ) {
        let shape = arrange_wall((columns, body), hosts, gpus, name);
        prop_assert!(shape.rows + LEGEND_ROWS + shape.panel_rows <= body, "{:?}", shape);
        prop_assert!(shape.across * shape.columns <= columns);
        prop_assert!(shape.rows >= 1 && shape.cells >= 1);
        let lines = wall_lines(&fleet(&vec![None; hosts]), |_| true);
        let mut place = WallPlace::default();
        let actions = [Action::Up, Action::Down, Action::Left, Action::Right, Action::PageDown, Action::Last];
        for step in steps {
            place.go(actions[step], &lines, &shape, |_| gpus);
            prop_assert!(place.host < hosts && (gpus == 0 || place.gpu < gpus));
            prop_assert!(place.top <= place.host && place.host < place.top + shape.capacity().max(1), "{:?}", place);
        }
    }
}
