use super::*;
use crate::app::testing::{NOW, app, at, connecting, host_states, press, report, reported_once, snapshot, update};
use crate::fleet::{FoldState, Group, LinkError, LinkErrorKind, SortKey, UserUsage};
use crate::ssh::prompt::{Answer, Prompt, PromptId, PromptKind};
use crate::wire::Request;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const SIZE: (u16, u16) = (120, 40);

fn control(app: &mut App, character: char) -> Vec<Effect> {
    app.update(Event::Key(KeyEvent::new(KeyCode::Char(character), KeyModifiers::CONTROL)), at(NOW))
}

fn key(app: &mut App, code: KeyCode) -> Vec<Effect> {
    app.update(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), at(NOW))
}

fn selected(app: &App) -> &crate::fleet::ListRow {
    &app.rows()[app.screen().list.index()]
}

fn passphrase(id: u64) -> Prompt {
    let kind = PromptKind::Passphrase { path: "~/.ssh/id".into(), fingerprint: None, failures: 0 };
    Prompt { id: PromptId(id), hosts: vec!["hgx-01".into()], kind }
}

#[test]
fn q_and_ctrl_c_quit_and_esc_does_not() {
    let mut app = app(2, 8, SIZE);
    assert!(matches!(press(&mut app, "q")[..], [Effect::Quit]));
    assert!(matches!(control(&mut app, 'c')[..], [Effect::Quit]));
    assert!(press(&mut app, "\u{1b}\u{1b}\u{1b}").is_empty());
    assert!(matches!(control(&mut app, 'l')[..], [Effect::Repaint]));
    assert!(matches!(control(&mut app, 'z')[..], [Effect::Suspend]));
}

#[test]
fn q_closes_whatever_covers_the_view_and_is_text_in_input_lines() {
    let mut app = app(2, 8, SIZE);
    for (opens, mode) in [
        ("?", Mode::Help),
        ("??", Mode::Help),
        ("u", Mode::UserPicker),
        ("3o", Mode::SortMenu),
        ("3", Mode::Processes),
        ("3T", Mode::SignalDialog),
    ] {
        press(&mut app, opens);
        if mode == Mode::Processes {
            key(&mut app, KeyCode::F(9));
            assert_eq!(app.mode(), Mode::SignalMenu);
        } else {
            assert_eq!(app.mode(), mode);
        }
        assert!(press(&mut app, "q").is_empty(), "{mode:?}");
        assert!(!app.mode().covers_view(), "{mode:?}: {:?}", app.mode());
    }
    for (opens, mode) in [("/", Mode::FilterLine), (":", Mode::Palette)] {
        press(&mut app, opens);
        assert!(press(&mut app, "q").is_empty());
        assert_eq!(app.mode(), mode, "q is text");
        press(&mut app, "\u{1b}");
    }
    // The dialog for KILL takes the name of the host, which may contain a q.
    press(&mut app, "3mKq");
    assert_eq!(app.signals().dialog().map(|dialog| dialog.typed.as_str()), Some("q"));
    press(&mut app, "\u{1b}");
    assert!(matches!(press(&mut app, "q")[..], [Effect::Quit]));
}

#[test]
fn q_declines_a_host_key_and_is_text_in_a_passphrase() {
    let mut app = host_states(SIZE);
    app.update(Event::Key(KeyEvent::new(KeyCode::Char('P'), KeyModifiers::SHIFT)), at(NOW - 5));
    assert!(matches!(press(&mut app, "q")[..], [Effect::Answer(PromptId(1), Answer::Decline)]));
    assert_eq!(app.mode(), Mode::SecretDialog);
    app.update(Event::Ticked, at(NOW + 5));
    assert!(press(&mut app, "q").is_empty());
    assert_eq!(app.mode(), Mode::SecretDialog);
}

#[test]
fn arrows_move_among_the_panes() {
    let mut app = app(7, 8, (120, 40));
    let across = usize::from(app.screen_layout(SIZE).grid.expect("a grid").per_row);
    assert_eq!(across, 4);
    let host = |app: &App| app.screen().host;
    press(&mut app, "↑←");
    assert_eq!(host(&app), 0);
    press(&mut app, "→l↓");
    assert_eq!(host(&app), 6);
    press(&mut app, "kl");
    assert_eq!(host(&app), 3);
    press(&mut app, "j");
    assert_eq!(host(&app), 6, "into the shorter last row");
    press(&mut app, "j→");
    assert_eq!(host(&app), 6);
    press(&mut app, "g");
    assert_eq!(host(&app), 0);
    key(&mut app, KeyCode::End);
    assert_eq!(host(&app), 6);
}

#[test]
fn tab_moves_the_focus_and_changes_the_mode() {
    let mut app = app(2, 8, SIZE);
    assert_eq!(app.mode(), Mode::Grid);
    press(&mut app, "\t");
    assert_eq!(app.mode(), Mode::List);
    key(&mut app, KeyCode::BackTab);
    assert_eq!(app.mode(), Mode::Grid);
    let mut small = reported_once(64, 8, (80, 16));
    assert_eq!(small.screen_layout((80, 16)).list_rows, 0);
    press(&mut small, "\t");
    assert_eq!(small.screen_layout((80, 16)).list_rows, 14, "a small body shows one of the two");
}

#[test]
fn the_selection_follows_its_process() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "\t↓↓↓↓");
    let chosen = selected(&app).key.clone();
    assert_eq!(app.screen().list.index(), 4);
    press(&mut app, "oh");
    assert_eq!(selected(&app).key, chosen);
    press(&mut app, "r");
    assert_eq!(selected(&app).key, chosen);
    report(&mut app, 0, 8, NOW + 2);
    assert_eq!(selected(&app).key, chosen);
    let capacity = usize::from(app.screen_layout(SIZE).list_rows) - 3;
    let top = app.screen().list.top(app.rows().len(), capacity);
    assert!((top..top + capacity).contains(&app.screen().list.index()), "and remains visible");
}

#[test]
fn unfolding_and_folding_a_job_keeps_the_selection() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "\t");
    let index = app.rows().iter().position(|row| row.workers == 8).expect("a job of eight");
    press(&mut app, &"↓".repeat(index));
    assert_eq!(selected(&app).fold_state, FoldState::Folded);
    let job = selected(&app).key.clone();
    let before = app.rows().len();
    press(&mut app, "→");
    assert_eq!(selected(&app).fold_state, FoldState::Open);
    assert_eq!(app.rows().len(), before + 8);
    press(&mut app, "↓↓");
    assert_eq!(selected(&app).fold_state, FoldState::Child);
    press(&mut app, "←");
    assert_eq!(selected(&app).key, job);
    assert_eq!(app.rows().len(), before);
    press(&mut app, "\n");
    assert_eq!(app.rows().len(), before + 8, "Enter unfolds too");
}

fn type_text(app: &mut App, text: &str) {
    for character in text.chars() {
        app.update(Event::Key(KeyEvent::new(KeyCode::Char(character), KeyModifiers::NONE)), at(NOW));
    }
}

#[test]
fn a_filter_applies_while_it_is_typed_and_esc_clears_it() {
    let mut app = app(6, 8, SIZE);
    let (all, total) = app.row_counts();
    assert_eq!(all, total);
    press(&mut app, "/");
    assert_eq!(app.mode(), Mode::FilterLine);
    type_text(&mut app, "user:dmitri q");
    assert_eq!(app.row_counts().0, 0, "letters are text in the line");
    key(&mut app, KeyCode::Backspace);
    key(&mut app, KeyCode::Backspace);
    let (kept, still) = app.row_counts();
    assert!(kept > 0 && kept < all && still == total);
    assert!(app.rows().iter().all(|row| row.who == "dmitri"));
    type_text(&mut app, " !");
    assert!(app.list_filter().line().is_some_and(|line| line.error.is_some()));
    assert_eq!(app.row_counts().0, kept, "the last valid filter stays");
    type_text(&mut app, "mem>0G");
    press(&mut app, "\n");
    assert_eq!((app.mode(), app.row_counts().0), (Mode::Grid, 0));
    press(&mut app, "\u{1b}");
    assert_eq!(app.row_counts(), (all, total));
    press(&mut app, "/");
    type_text(&mut app, "nobody");
    press(&mut app, "\u{1b}");
    assert_eq!(app.row_counts(), (all, total), "Esc clears");
}

#[test]
fn mine_idle_problems_and_user_filters_combine() {
    let mut app = app(6, 8, SIZE);
    let (all, _) = app.row_counts();
    press(&mut app, "m");
    assert!(app.rows().iter().all(|row| row.is_mine) && !app.rows().is_empty());
    press(&mut app, "m!");
    assert!(app.rows().len() < all);
    press(&mut app, "!i");
    assert!(app.rows().iter().all(|row| matches!(row.state, Some((crate::fleet::GpuState::Idle, _)))));
    press(&mut app, "i");
    assert_eq!(app.row_counts().0, all);
    press(&mut app, "u");
    assert_eq!(app.mode(), Mode::UserPicker);
    let first = app.user_totals()[0].0.clone();
    press(&mut app, "↓\n");
    assert!(app.rows().iter().all(|row| row.who == first) && !app.rows().is_empty());
    press(&mut app, "u");
    assert_eq!(app.screen().user_picker, Some(1), "it opens at the chosen user");
    press(&mut app, "g\n");
    assert_eq!(app.row_counts().0, all);
}

#[test]
fn the_viewed_process_stays_in_the_list_when_the_filter_no_longer_matches() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "3tt/");
    type_text(&mut app, "sm>90");
    press(&mut app, "\n\n");
    let View::Process(key) = app.screen().view().clone() else { panic!("a process") };
    app.list_filter.restore("sm>100");
    report(&mut app, 0, 8, NOW + 2);
    assert!(app.rows().iter().any(|row| row.key == key));
    assert_eq!(app.rows().len(), 1);
}

#[test]
fn the_full_screen_list_has_only_one_focus_and_esc_leaves_it() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "3");
    assert_eq!((app.mode(), app.screen().focus()), (Mode::Processes, Focus::List));
    press(&mut app, "↓↓\t");
    assert_eq!(app.mode(), Mode::Processes, "the view has one part");
    press(&mut app, "\u{1b}");
    assert_eq!(app.mode(), Mode::Grid);
}

#[test]
fn tags_follow_their_rows() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "3tt  ");
    assert_eq!((app.screen().list.tagged().len(), app.screen().list.index()), (2, 2));
    report(&mut app, 0, 8, NOW + 2);
    assert_eq!(app.screen().list.tagged().len(), 2);
    press(&mut app, "↑ ");
    assert_eq!(app.screen().list.tagged().len(), 1, "the key toggles the tag");
    press(&mut app, "U");
    assert!(app.screen().list.tagged().is_empty());
}

#[test]
fn f_keeps_the_selection_on_its_line() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "3F↓↓");
    let (index, key) = (app.screen().list.index(), selected(&app).key.clone());
    press(&mut app, "oh");
    assert_eq!(app.screen().list.index(), index);
    assert_ne!(selected(&app).key, key);
}

#[test]
fn visible_rows_have_sparklines() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "3");
    for row in app.rows().iter().take(10) {
        let points = app.sparkline(&row.key).expect("a history");
        assert!(points.iter().flatten().count() > 2, "{points:?}");
    }
    press(&mut app, "G");
    let last = &app.rows()[app.rows().len() - 1].key;
    assert!(app.sparkline(last).is_some(), "also after scrolling");
}

#[test]
fn a_frozen_view_keeps_its_sparklines() {
    let mut app = app(2, 8, (120, 40));
    press(&mut app, "Z");
    app.update(Event::Resized(200, 60), at(NOW + 300));
    let last = app.rows().last().expect("a row").key.clone();
    assert!(app.sparkline(&last).is_some(), "two minutes up to the display time");
}

#[test]
fn t_steps_through_the_groupings() {
    let mut app = app(2, 8, SIZE);
    press(&mut app, "\ttt");
    assert_eq!(app.screen().list.order().group, Group::None);
    assert!(app.rows().iter().all(|row| row.fold_state == FoldState::Leaf));
    press(&mut app, "t");
    assert_eq!(app.screen().list.order().group, Group::User);
    assert!(app.rows().iter().all(|row| row.group_summary.is_some() && row.depth == 0));
    press(&mut app, "→↓");
    assert_eq!(selected(&app).depth, 1);
    press(&mut app, "←");
    assert_eq!(selected(&app).depth, 0, "folding moves the selection to the parent");
    press(&mut app, "t");
    assert_eq!(app.screen().list.order().group, Group::Host);
    press(&mut app, "\n\n");
    assert!(matches!(app.screen().view(), View::Host(_)), "Enter on an unfolded host opens it");
    press(&mut app, "\u{1b}t");
    assert_eq!(app.screen().list.order().group, Group::Job);
}

#[test]
fn the_sort_column_is_chosen_by_step_or_by_letter() {
    let mut app = app(2, 8, SIZE);
    press(&mut app, "\t.");
    assert_eq!(app.screen().list.order().key, SortKey::Host);
    press(&mut app, ",,");
    assert_eq!(app.screen().list.order().key, SortKey::Command, "the last column precedes the first");
    press(&mut app, "o");
    assert_eq!(app.mode(), Mode::SortMenu);
    press(&mut app, "g");
    assert_eq!(app.screen().list.order().key, SortKey::GpuMemory);
    assert!(app.screen().list.order().is_descending, "the most memory first");
    press(&mut app, "r");
    assert!(!app.screen().list.order().is_descending);
    press(&mut app, "o\u{1b}");
    assert_eq!(app.mode(), Mode::List);
    assert_eq!(app.screen().list.order().key, SortKey::GpuMemory);
}

#[test]
fn the_host_view_lists_its_processes_and_steps_to_adjacent_hosts() {
    let mut app = app(3, 8, SIZE);
    let all = app.rows().len();
    press(&mut app, "→\n");
    assert_eq!(app.screen().view(), &View::Host(HostId(1)));
    assert!(app.rows().iter().all(|row| row.key.host == HostId(1)));
    press(&mut app, "↓↓");
    assert_eq!(app.screen().gpu, 4, "the cards stand in two columns");
    press(&mut app, "]");
    assert_eq!((app.screen().view(), app.screen().gpu), (&View::Host(HostId(2)), 0));
    press(&mut app, "]");
    assert_eq!(app.screen().view(), &View::Host(HostId(0)), "the first host follows the last");
    press(&mut app, "[");
    assert_eq!(app.screen().view(), &View::Host(HostId(2)));
    press(&mut app, "\t");
    assert_eq!(app.mode(), Mode::HostList);
    press(&mut app, "\u{1b}");
    assert_eq!((app.screen().view(), app.screen().focus()), (&View::Overview, Focus::Panes));
    assert_eq!(app.rows().len(), all);
    assert_eq!(app.screen().host, 2, "the last viewed host is selected");
}

#[test]
fn the_process_view_follows_its_process() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "\ttt↓↓\n");
    let View::Process(key) = app.screen().view().clone() else { panic!("a process") };
    assert_eq!(app.mode(), Mode::Process);
    update(&mut app, 0, HostUpdate::Silent, NOW);
    assert_eq!(app.screen().view(), &View::Process(key.clone()));
    press(&mut app, "↓j");
    assert_eq!(app.screen().view(), &View::Process(key.clone()), "only `]` leads to another process");
    press(&mut app, "]");
    assert_ne!(app.screen().view(), &View::Process(key.clone()));
    press(&mut app, "[");
    assert_eq!(app.screen().view(), &View::Process(key));
    press(&mut app, "\u{1b}");
    assert_eq!(app.mode(), Mode::List);
    // The process view opened from a host view keeps the list of that host.
    press(&mut app, "\t\n\t\n");
    report(&mut app, 1, 8, NOW + 2);
    assert!(app.rows().iter().all(|row| row.key.host == HostId(0)));
    press(&mut app, "\u{1b}");
    assert_eq!(app.mode(), Mode::HostList);
}

#[test]
fn the_help_scrolls_to_its_end() {
    let mut app = app(1, 2, (80, 24));
    press(&mut app, "?");
    assert_eq!(app.mode(), Mode::Help);
    press(&mut app, &"↓".repeat(200));
    assert_eq!(app.screen().help.map(|help| help.top), Some(0), "the keys of a view fit");
    press(&mut app, "?");
    press(&mut app, &"↓".repeat(200));
    let top = |app: &App| app.screen().help.map(|help| help.top).expect("is open");
    let end = top(&app);
    assert!(end > 50);
    press(&mut app, "↑");
    assert_eq!(top(&app), end - 1);
    press(&mut app, "\t");
    assert_eq!((app.mode(), top(&app)), (Mode::Help, 0), "the other page begins at its top");
    press(&mut app, "\u{1b}");
    assert_eq!(app.mode(), Mode::Grid);
}

#[test]
fn retry_connects_only_hosts_that_are_not_live() {
    let mut app = app(3, 8, SIZE);
    assert!(press(&mut app, "r").is_empty());
    assert_eq!(app.notice(at(NOW)), Some("hgx-01 is connected"));
    assert_eq!(app.notice(at(NOW + 5)), None);
    update(&mut app, 0, HostUpdate::Silent, NOW);
    assert!(matches!(press(&mut app, "r")[..], [Effect::Retry(HostId(0))]), "stale");
    let error = LinkError::new(LinkErrorKind::Refused, "connection refused");
    for host in [0, 2] {
        let down = HostUpdate::Down { error: error.clone(), retry_at: None, attempt: 1 };
        update(&mut app, host, down, NOW);
    }
    assert!(matches!(press(&mut app, "r")[..], [Effect::Retry(HostId(0))]));
    assert!(matches!(press(&mut app, "R")[..], [Effect::Retry(HostId(0)), Effect::Retry(HostId(2))]));
    press(&mut app, "\t");
    assert!(press(&mut app, "r").is_empty(), "in the list it reverses the order");
    assert_eq!(app.links().down, 2);
    assert_eq!(app.totals().hosts_covered, 1);
}

#[test]
fn the_interval_changes_in_steps_between_its_limits() {
    let mut app = app(1, 2, SIZE);
    assert_eq!(app.interval(), Duration::from_secs(2));
    assert!(matches!(press(&mut app, "-")[..], [Effect::SetInterval(interval)] if interval == Duration::from_secs(5)));
    assert_eq!(press(&mut app, "-------").len(), 3);
    assert_eq!(app.interval(), Duration::from_secs(60));
    assert_eq!(app.notice(at(NOW)), Some("this is the longest interval"));
    assert_eq!(press(&mut app, "++++++++++").len(), 7);
    assert_eq!(app.interval(), Duration::from_millis(250));
}

#[test]
fn refresh_requests_readings_from_live_hosts() {
    let mut app = app(2, 2, SIZE);
    update(&mut app, 0, HostUpdate::Silent, NOW);
    assert!(matches!(control(&mut app, 'r')[..], [Effect::Request(HostId(1), Request::Resend)]));
}

#[test]
fn a_prompt_opens_by_itself_only_before_any_host_has_data() {
    let mut fresh = connecting(&["hgx-01".to_owned()], SIZE);
    fresh.update(Event::Prompted(passphrase(1)), at(10));
    assert_eq!(fresh.mode(), Mode::SecretDialog);
    let mut live = app(1, 2, SIZE);
    live.update(Event::Prompted(passphrase(1)), at(NOW));
    assert_eq!(live.mode(), Mode::Grid);
    press(&mut live, "P");
    assert_eq!(live.mode(), Mode::SecretDialog);
    live.update(Event::PromptWithdrawn(PromptId(1)), at(NOW));
    assert_eq!(live.mode(), Mode::Grid);
    press(&mut live, "P");
    assert_eq!(live.notice(at(NOW)), Some("no prompt is waiting"));
}

#[test]
fn a_passphrase_is_typed_and_pasted() {
    let mut app = connecting(&["hgx-01".to_owned()], SIZE);
    app.update(Event::Prompted(passphrase(7)), at(NOW - 1));
    assert!(press(&mut app, "qs?").is_empty(), "letters are text here");
    app.update(Event::Pasted("esame\r\n".into()), at(NOW));
    let effects = press(&mut app, "\n");
    let [Effect::Answer(PromptId(7), Answer::Secret(secret))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(secret.expose(), "qs?esame");
    assert!(!format!("{effects:?}").contains("esame"));
    assert_eq!(app.mode(), Mode::Grid);
}

#[test]
fn a_host_key_is_declined_trusted_once_or_saved() {
    for (keys, expected) in [("s", "Decline"), ("\u{1b}", "Decline"), ("o", "TrustOnce"), ("yes\n", "TrustAndSave")] {
        let mut app = host_states(SIZE);
        app.update(Event::Key(KeyEvent::new(KeyCode::Char('P'), KeyModifiers::SHIFT)), at(NOW - 5));
        assert_eq!(app.mode(), Mode::HostKeyDialog);
        let effects = press(&mut app, keys);
        let [Effect::Answer(PromptId(1), answer)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(format!("{answer:?}"), expected);
        assert_eq!(app.mode(), Mode::SecretDialog, "the next question follows");
    }
    let mut app = host_states(SIZE);
    press(&mut app, "P");
    assert!(press(&mut app, "o").is_empty(), "keys in the first half second are ignored");
    assert!(matches!(control(&mut app, 'c')[..], [Effect::Quit]), "except Ctrl-C");
}

#[test]
fn the_tick_marks_silent_hosts_as_stale() {
    let mut app = app(2, 8, SIZE);
    assert_eq!(app.totals().hosts_covered, 2);
    app.update(Event::Ticked, at(NOW + 5));
    app.refresh_derived_state();
    assert_eq!(app.totals().hosts_covered, 2);
    app.update(Event::Ticked, at(NOW + 8));
    app.refresh_derived_state();
    assert_eq!(app.totals().hosts_covered, 0);
    assert!(app.rows().iter().all(|row| row.is_stale));
    assert!(matches!(app.update(Event::Resumed, at(NOW + 8000))[..], [Effect::Repaint]));
}

#[test]
fn an_unknown_host_and_an_empty_fleet_are_ignored() {
    let mut app = connecting(&[], SIZE);
    update(&mut app, 9, HostUpdate::Silent, 1);
    assert!(press(&mut app, "\n→↓r]R\t\n↓").is_empty());
    assert_eq!(app.screen().view(), &View::Overview);
}

fn names(app: &App) -> Vec<&str> {
    app.visible_hosts().iter().map(|index| app.fleet().hosts()[*index].name().as_str()).collect()
}

fn filter(app: &mut App, text: &str) {
    press(app, "/");
    app.update(Event::Key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL)), at(NOW));
    press(app, text);
    press(app, "\n");
}

#[test]
fn hiding_a_host_selects_its_neighbour() {
    let mut app = app(4, 8, SIZE);
    press(&mut app, "→D");
    assert_eq!(names(&app), ["hgx-01", "hgx-03", "hgx-04"]);
    assert_eq!(app.notice(at(NOW)), Some("hgx-02 is hidden; H shows it again"));
    assert_eq!(app.screen().host, 2);
    assert_eq!(app.hidden_host_counts(), (1, 0));
    assert!(app.rows().iter().all(|row| row.host_name != "hgx-02"), "its processes are not listed");
    let (kept, total) = app.row_counts();
    assert!(kept < total, "and the counts show that");
    // `]` skips it, and the wall does not show it.
    press(&mut app, "k\n]");
    assert!(matches!(app.screen().view(), View::Host(HostId(3))), "{:?}", app.screen().view());
    assert_eq!(app.wall_lines().len(), 3);
    press(&mut app, "1H");
    assert_eq!(names(&app).len(), 4);
    press(&mut app, "DDDD");
    assert_eq!(names(&app).len(), 1, "the last visible host cannot be hidden");
}

#[test]
fn a_pinned_host_comes_first() {
    let mut app = app(4, 8, SIZE);
    press(&mut app, "→→*");
    assert_eq!(names(&app), ["hgx-03", "hgx-01", "hgx-02", "hgx-04"]);
    assert_eq!(app.screen().host, 2, "the selection does not change");
    press(&mut app, "→");
    assert_eq!(app.screen().host, 0);
    press(&mut app, "←*");
    assert_eq!(names(&app), ["hgx-01", "hgx-02", "hgx-03", "hgx-04"]);
}

#[test]
fn a_filter_on_hosts_hides_hosts() {
    let mut app = app(4, 8, SIZE);
    filter(&mut app, "host:hgx-03");
    assert_eq!(names(&app), ["hgx-03"]);
    assert_eq!((app.hidden_host_counts(), app.screen().host), ((0, 3), 2));
    filter(&mut app, "gpus=8");
    assert_eq!(names(&app), ["hgx-02"], "the host that runs a job on eight GPUs");
    filter(&mut app, "HGX-04");
    assert_eq!(names(&app), ["hgx-04"], "a word is the name of a host");
    filter(&mut app, "pid:5100 | host:hgx-03");
    assert_eq!(names(&app), ["hgx-02", "hgx-03"]);
    filter(&mut app, "sm<5");
    assert_eq!(names(&app).len(), 4, "a condition on readings hides no host");
    filter(&mut app, "stuck");
    assert_eq!(names(&app).len(), 4);
    filter(&mut app, "host:nowhere");
    assert!(names(&app).is_empty());
    press(&mut app, "→j\n[]vD*");
    press(&mut app, "1\u{1b}");
    assert_eq!(names(&app).len(), 4);
}

#[test]
fn a_frozen_view_does_not_change_and_the_live_fleet_does() {
    let mut app = app(2, 8, SIZE);
    let before = app.fleet().hosts()[0].snapshots_seen;
    press(&mut app, "Z");
    assert_eq!(app.frozen_since(), Some(at(NOW)));
    for seconds in [NOW + 5, NOW + 10] {
        report(&mut app, 0, 8, seconds);
        app.update(Event::Ticked, at(seconds));
        app.refresh_derived_state();
    }
    assert_eq!(app.fleet().hosts()[0].snapshots_seen, before);
    assert_eq!(app.live_fleet().hosts()[0].snapshots_seen, before + 2);
    assert_eq!(app.display_time(at(NOW + 10)), at(NOW));
    press(&mut app, "→\t↓");
    assert_eq!((app.screen().host, app.mode()), (1, Mode::List), "navigation works");
    press(&mut app, "Z");
    assert_eq!(app.frozen_since(), None);
    assert_eq!(app.fleet().hosts()[0].snapshots_seen, before + 2);
}

#[test]
fn added_hosts_take_the_place_of_a_pane_or_come_last_also_in_a_frozen_view() {
    let config = |name: &str| Arc::new(HostConfig::named(name));
    let mut app = app(2, 4, (120, 40));
    let error = crate::fleet::LinkError::new(crate::fleet::LinkErrorKind::Refused, "nothing listens on port 22");
    update(&mut app, 1, HostUpdate::Down { error, retry_at: None, attempt: 1 }, NOW);
    press(&mut app, "Z");
    app.update(Event::HostsAdded(vec![(HostId(1), config("b-01")), (HostId(2), config("b-02"))], Vec::new()), at(NOW));
    app.refresh_derived_state();
    assert_eq!(names(&app), ["hgx-01", "b-01", "b-02"]);
    report(&mut app, 2, 4, NOW + 1);
    press(&mut app, "Z");
    app.refresh_derived_state();
    assert_eq!((app.totals().gpus, app.visible_hosts()), (8, &[0, 1, 2][..]));
    assert_eq!(app.fleet().hosts()[1].link.word(), "connecting", "the pane has a new host");
    report(&mut app, 1, 4, NOW + 2);
    assert_eq!((app.totals().gpus, app.links().live), (12, 3));
    // An id beyond the next one belongs to no list.
    app.update(Event::HostsAdded(vec![(HostId(7), config("x"))], Vec::new()), at(NOW + 2));
    assert_eq!(app.fleet().hosts().len(), 3);
}

#[test]
fn an_added_host_stands_where_its_collector_lists_it_and_the_selection_stays() {
    let mut app = app(2, 4, (120, 40));
    press(&mut app, "→");
    assert_eq!(app.screen().host, 1);
    let shown = |app: &App| {
        let hosts = app.visible_hosts().iter().map(|index| app.fleet().hosts()[*index].name().to_string());
        hosts.collect::<Vec<_>>()
    };
    let row = selected(&app).row.key.clone();
    let order = [0, 2, 1].map(HostId).to_vec();
    app.update(Event::HostsAdded(vec![(HostId(2), Arc::new(HostConfig::named("new")))], order), at(NOW));
    report(&mut app, 2, 4, NOW);
    app.refresh_derived_state();
    assert_eq!(shown(&app), ["hgx-01", "new", "hgx-02"]);
    assert_eq!((app.screen().host, &selected(&app).row.key), (1, &row));
    let on_wall: Vec<_> = crate::app::wall::wall_lines(app.fleet(), |_| true);
    assert_eq!(on_wall, [0, 2, 1].map(crate::app::wall::WallLine::Host));
    press(&mut app, "←");
    assert_eq!(app.screen().host, 2, "the host to the left");
    app.screen.list.set_order(crate::fleet::ListOrder { key: SortKey::Host, is_descending: false, group: Group::None });
    app.update_derived_state(Changes::ALL);
    let mut hosts: Vec<u32> = app.rows().iter().map(|row| row.row.key.host.0).collect();
    hosts.dedup();
    assert_eq!(hosts, [0, 2, 1], "sorted by host");
    // The third host has the processes of the second one.
    update(&mut app, 2, HostUpdate::Snapshot(Box::new(snapshot(1, 4, NOW + 1))), NOW + 1);
    press(&mut app, "4");
    app.refresh_derived_state();
    let users = app.users_view();
    let on_both =
        |user: &&UserUsage| user.hosts.iter().filter(|(host, _)| [HostId(1), HostId(2)].contains(host)).count() == 2;
    let user = users.list().iter().find(on_both).expect("a user of both hosts");
    let hosts: Vec<u32> = user.hosts.iter().map(|(host, _)| host.0).filter(|host| *host > 0).collect();
    assert_eq!(hosts, [2, 1], "{user:?}");
}

#[test]
fn a_host_in_the_place_of_a_pane_takes_over_none_of_its_findings() {
    let mut app = app(2, 4, (120, 40));
    let down = || {
        let error = LinkError::new(LinkErrorKind::Refused, "nothing listens on port 22");
        HostUpdate::Down { error, retry_at: None, attempt: 1 }
    };
    let wait = |app: &mut App, seconds: std::ops::Range<u64>| {
        for second in seconds {
            report(app, 0, 4, NOW + second);
            app.update(Event::Ticked, at(NOW + second));
        }
        app.refresh_derived_state();
    };
    let unreachable = |app: &App| {
        let of_host = app.findings().of_host(HostId(1));
        let found = of_host.filter(|one| one.rule == crate::diagnosis::RuleId::HostUnreachable);
        found.map(|one| one.hosts[0].1.to_string()).collect::<Vec<_>>()
    };
    update(&mut app, 1, down(), NOW);
    wait(&mut app, 1..300);
    assert_eq!(unreachable(&app), ["hgx-02"]);
    app.update(Event::HostsAdded(vec![(HostId(1), Arc::new(HostConfig::named("b-01")))], Vec::new()), at(NOW + 300));
    wait(&mut app, 300..302);
    assert_eq!(unreachable(&app), [""; 0], "the new host is being connected");
    report(&mut app, 1, 4, NOW + 302);
    update(&mut app, 1, down(), NOW + 303);
    wait(&mut app, 304..600);
    assert_eq!(unreachable(&app), ["b-01"]);
}

#[test]
fn density_keys_change_the_panes() {
    let mut app = app(6, 8, SIZE);
    let rows = |app: &App| app.screen_layout(SIZE).grid.expect("a grid").pane_rows;
    let auto = rows(&app);
    press(&mut app, "c");
    assert!(rows(&app) < auto);
    assert_eq!((app.density, app.notice(at(NOW))), (Density::Compact, Some("density compact")));
    press(&mut app, "f");
    assert!(app.screen_layout(SIZE).grid.expect("a grid").overflows());
    press(&mut app, "a");
    assert_eq!(rows(&app), auto);
}

#[test]
fn only_a_part_of_a_huge_terminal_is_drawn() {
    let mut app = app(2, 8, (120, 40));
    for (columns, rows, drawn) in [
        (u16::MAX, u16::MAX, MAX_DRAWN_SIZE),
        (32_767, 32_767, MAX_DRAWN_SIZE),
        (u16::MAX, 200, (MAX_DRAWN_SIZE.0, 200)),
        (0, u16::MAX, (0, MAX_DRAWN_SIZE.1)),
        (120, 40, (120, 40)),
    ] {
        app.update(Event::Resized(columns, rows), at(NOW));
        assert_eq!(app.size(), drawn);
        assert_eq!(app.derived.screen_layout.size, drawn);
    }
}

/// Reports a host whose processes with these pids are gone.
fn report_without(app: &mut App, host: usize, pids: &[u32], seconds: u64) {
    use crate::wire::{GpuProcessColumns, GpuProcessReading};
    let mut snapshot = crate::app::testing::snapshot(host, 8, seconds);
    let kept: Vec<GpuProcessReading> = (0..snapshot.gpu_processes.len())
        .map(|row| snapshot.gpu_processes.row(row))
        .filter(|usage| usage.pid.is_none_or(|pid| !pids.contains(&pid)))
        .collect();
    snapshot.gpu_processes = GpuProcessColumns::from_rows(&kept);
    update(app, host, HostUpdate::Snapshot(Box::new(snapshot)), seconds);
}

#[test]
fn the_cursor_stays_on_a_row_whose_process_has_ended() {
    // With the first row selected without a movement, as after Tab.
    for filter in ["", "/user:erika\n", "m"] {
        let mut app = app(6, 8, SIZE);
        press(&mut app, "3");
        press(&mut app, filter);
        let index = app.rows().iter().position(|row| row.key.host == HostId(1)).expect("a job of hgx-02");
        press(&mut app, &"↓".repeat(index));
        press(&mut app, "T");
        assert!(app.signals().dialog().is_some());
        press(&mut app, "y");
        let chosen = selected(&app).key.clone();
        let workers: Vec<u32> = (5101..=5108).collect();
        // The workers end one after the other, the first one first.
        for ended in 1..=workers.len() {
            report_without(&mut app, 1, &workers[..ended], NOW + ended as u64);
            assert_eq!((selected(&app).key.host, &selected(&app).job), (HostId(1), &app.jobs(HostId(1))[0].row.job));
        }
        assert!(selected(&app).ended_at.is_some(), "{filter}: {:?}", selected(&app).row);
        assert_eq!(selected(&app).key.host, chosen.host);
        press(&mut app, "T");
        assert!(app.signals().dialog().is_none(), "there is nothing left to signal");
        assert_eq!(app.notice(at(NOW + 9)), Some("no process to signal: it has ended"));
    }
}

#[test]
fn a_row_on_which_a_key_was_pressed_keeps_the_cursor() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "\t");
    // The first row is selected because it is the first one.
    let first = selected(&app).key.clone();
    press(&mut app, "T\u{1b}");
    let pid = first.process.pid;
    let workers: Vec<u32> =
        app.jobs(first.host).iter().flat_map(crate::fleet::JobRows::process_keys).map(|key| key.pid).collect();
    report_without(&mut app, first.host.0 as usize, &[vec![pid], workers].concat(), NOW + 1);
    assert_eq!(selected(&app).key.host, first.host);
    assert!(selected(&app).ended_at.is_some());
}
