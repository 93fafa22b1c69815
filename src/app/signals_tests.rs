use super::*;
use crate::app::signals::{alternative, end_command};
use crate::app::testing::{NOW, app, at, press, report};
use crate::app::{Event, Mode};
use crate::config::{HostConfig, SignalRule};
use crate::fleet::HostUpdate;
use crate::wire::Owner;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::sync::Arc;

const SIZE: (u16, u16) = (120, 40);

/// Returns an app in whose full-screen list this user's first job is selected.
fn app_with_job_of(user: &str) -> App {
    let mut app = app(6, 8, SIZE);
    select(&mut app, |row| row.who == user && row.workers > 1);
    app
}

fn select(app: &mut App, wanted: impl Fn(&crate::fleet::Row) -> bool) {
    press(app, "3g");
    let index = app.rows().iter().position(|row| wanted(row)).expect("such a row");
    press(app, &"↓".repeat(index));
}

fn configure(app: &mut App, change: impl Fn(&mut HostConfig)) {
    for host in app.fleet.hosts_mut() {
        change(Arc::make_mut(&mut host.config));
    }
}

fn requests(effects: &[Effect]) -> Vec<(HostId, u64, u32, Signal)> {
    let request = |effect: &Effect| match effect {
        Effect::Request(host, Request::Signal { id, pid, signal, .. }) => Some((*host, *id, *pid, *signal)),
        _ => None,
    };
    effects.iter().filter_map(request).collect()
}

fn logged(effects: &[Effect]) -> Vec<String> {
    let line = |effect: &Effect| if let Effect::LogSignal(line) = effect { Some(line.to_string()) } else { None };
    effects.iter().filter_map(line).collect()
}

fn answer(app: &mut App, host: HostId, id: u64, outcome: ReplyOutcome, seconds: u64) -> Vec<Effect> {
    let update = HostUpdate::Reply(Reply { id, outcome });
    app.update(Event::Host(host, Box::new(update)), at(seconds))
}

fn type_word(app: &mut App, word: &str) -> Vec<Effect> {
    word.chars()
        .flat_map(|character| {
            app.update(Event::Key(KeyEvent::new(KeyCode::Char(character), KeyModifiers::NONE)), at(NOW))
        })
        .collect()
}

fn refusal_of(app: &mut App, key: &str) -> String {
    press(app, key);
    let dialog = app.signals().dialog().expect("a dialog");
    assert_eq!(dialog.confirmation, Confirmation::Impossible);
    dialog.targets[0].refusal.clone().expect("a refusal")
}

#[test]
fn a_request_has_the_name_and_arguments_that_the_probe_compares() {
    let sent = |user: &str, has_workers: bool| {
        let mut app = app(6, 8, SIZE);
        select(&mut app, |row| row.who == user && (row.workers > 1) == has_workers);
        press(&mut app, "T");
        let typed = matches!(app.signals().dialog().expect("a dialog").confirmation, Confirmation::Word(_));
        let target = app.signals().dialog().expect("a dialog").targets[0].clone();
        let effects = if typed { Vec::new() } else { press(&mut app, "y") };
        for effect in &effects {
            if let Effect::Request(_, Request::Signal { name, argv, .. }) = effect {
                assert_eq!((name, argv), (&target.name, &target.argv));
            }
        }
        (target.name.to_string(), target.argv.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let (name, argv) = sent("fumi", false);
    assert_eq!((name.as_str(), argv.first().map(String::as_str)), ("python", Some("python")), "{argv:?}");
    // The driver does not list a launcher: its facts are among the ancestors of its workers.
    let (name, argv) = sent("erika", true);
    assert_eq!((name.as_str(), argv.first().map(String::as_str)), ("torchrun", Some("torchrun")), "{argv:?}");
}

#[test]
fn y_sends_term_to_the_launcher_of_an_own_job() {
    let mut app = app_with_job_of("erika");
    assert!(press(&mut app, "T").is_empty());
    assert_eq!(app.mode(), Mode::SignalDialog);
    let dialog = app.signals().dialog().expect("a dialog");
    assert_eq!(dialog.confirmation, Confirmation::Key);
    let [target] = &dialog.targets[..] else { panic!("one target: {:?}", dialog.targets) };
    assert_eq!((target.workers.len(), target.process.pid % 100), (8, 0), "the launcher and its eight workers");
    let (host, pid) = (target.host, target.process.pid);
    assert!(press(&mut app, "x").is_empty());
    let effects = press(&mut app, "y");
    assert_eq!(requests(&effects), [(host, 1, pid, Signal::Terminate)]);
    assert!(logged(&effects)[0].contains(&format!("pid={pid} ")), "{:?}", logged(&effects));
    assert_eq!(app.mode(), Mode::Processes);
    let effects = answer(&mut app, host, 1, ReplyOutcome::Sent, NOW);
    let name = app.fleet().host(host).expect("a host").name().clone();
    assert_eq!(app.notice(at(NOW)), Some(format!("TERM to pid {pid} on {name}: sent").as_str()));
    assert!(logged(&effects)[0].contains(" sent: "), "{:?}", logged(&effects));
    assert!(answer(&mut app, host, 1, ReplyOutcome::Gone, NOW).is_empty(), "only the first reply counts");
}

#[test]
fn enter_and_esc_cancel_the_dialog() {
    for key in ["\n", "\u{1b}"] {
        let mut app = app_with_job_of("erika");
        press(&mut app, "T");
        assert!(press(&mut app, key).is_empty());
        assert_eq!(app.mode(), Mode::Processes);
    }
    let mut app = app_with_job_of("erika");
    assert!(matches!(
        app.update(Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), at(NOW))[..],
        [Effect::Quit]
    ));
}

#[test]
fn kill_and_shared_accounts_need_the_host_name_typed() {
    let mut kill = app_with_job_of("erika");
    press(&mut kill, "K");
    let mut shared = app_with_job_of("erika");
    configure(&mut shared, |config| config.shared_account = true);
    press(&mut shared, "T");
    for mut app in [kill, shared] {
        let Some(Confirmation::Word(name)) = app.signals().dialog().map(|dialog| dialog.confirmation.clone()) else {
            panic!("a word")
        };
        assert!(name.starts_with("hgx-0"));
        assert!(type_word(&mut app, "y").is_empty());
        assert!(press(&mut app, "\n").is_empty());
        assert!(app.signals().dialog().is_some_and(|dialog| dialog.is_mistyped));
        app.update(Event::Key(KeyEvent::from(KeyCode::Backspace)), at(NOW));
        assert!(type_word(&mut app, &name).is_empty());
        assert_eq!(requests(&press(&mut app, "\n")).len(), 1);
    }
}

#[test]
fn a_signal_that_cannot_succeed_is_refused_in_the_dialog() {
    let mut app = app_with_job_of("dmitri");
    let name = app.rows()[app.screen().list.index()].host_name.clone();
    let own = format!("it is not your process, and hosts.toml allows only your own on {name} (signals = \"own\")");
    assert_eq!(refusal_of(&mut app, "T"), own);
    assert!(press(&mut app, "y\n").is_empty(), "Enter closes");
    configure(&mut app, |config| config.signals = SignalRule::All);
    assert_eq!(refusal_of(&mut app, "T"), "it is not your process: only dmitri or root may signal it");
    press(&mut app, "\u{1b}");
    configure(&mut app, |config| config.signals = SignalRule::None);
    assert_eq!(refusal_of(&mut app, "I"), format!("hosts.toml allows no signals on {name} (signals = \"none\")"));
    press(&mut app, "\u{1b}");
    let mut app = app_with_job_of("erika");
    let host = app.rows()[app.screen().list.index()].key.host;
    app.update(Event::Host(host, Box::new(HostUpdate::Silent)), at(NOW));
    assert!(refusal_of(&mut app, "T").ends_with(" is not connected"));
}

#[test]
fn readonly_disables_signals() {
    let mut app = app_with_job_of("erika");
    app.settings.is_readonly = true;
    press(&mut app, "T");
    assert!(app.signals().dialog().is_none());
    assert!(app.notice(at(NOW)).is_some_and(|words| words.starts_with("signals are disabled")));
}

#[test]
fn several_hosts_need_the_number_typed_and_show_each_outcome() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "3m");
    let jobs: Vec<usize> =
        app.rows().iter().enumerate().filter(|(_, row)| row.workers > 1).map(|(index, _)| index).collect();
    assert!(jobs.len() >= 2);
    for index in jobs {
        press(&mut app, "g");
        press(&mut app, &"↓".repeat(index));
        press(&mut app, " ");
    }
    press(&mut app, "T");
    let dialog = app.signals().dialog().expect("a dialog");
    let count = dialog.targets.len();
    assert_eq!(dialog.confirmation, Confirmation::Word(count.to_string()));
    type_word(&mut app, &count.to_string());
    let sent = requests(&press(&mut app, "\n"));
    assert_eq!(sent.len(), count);
    assert!(app.screen().list.tagged().is_empty(), "sending removes the tags");
    answer(&mut app, sent[0].0, sent[0].1, ReplyOutcome::Reused, NOW);
    assert!(
        answer(&mut app, sent[0].0, sent[1].1, ReplyOutcome::Sent, NOW).is_empty(),
        "a reply from another host is ignored"
    );
    app.update(Event::Ticked, at(NOW + 11));
    let outcomes = app.signals().dialog().and_then(|dialog| dialog.outcomes.clone()).expect("outcomes");
    assert_eq!(outcomes[0].as_deref(), Some("not sent: another process has this pid now"));
    assert_eq!(outcomes[1].as_deref(), Some("no reply: the signal may or may not have been sent"));
    press(&mut app, "\n");
    assert_eq!(app.mode(), Mode::Processes);
}

#[test]
fn kill_is_offered_for_workers_that_survive_their_launcher() {
    let mut app = app_with_job_of("erika");
    press(&mut app, "T");
    let (host, id, ..) = requests(&press(&mut app, "y"))[0];
    answer(&mut app, host, id, ReplyOutcome::Sent, NOW);
    for seconds in [NOW + 10, NOW + 20, NOW + 30] {
        report(&mut app, host.0 as usize, 8, seconds);
        app.update(Event::Ticked, at(seconds));
    }
    let dialog = app.signals().dialog().expect("an offer");
    assert!(dialog.is_kill_offer);
    assert_eq!((dialog.signal, dialog.targets.len()), (Signal::Kill, 8));
    let escape = Event::Key(KeyEvent::from(KeyCode::Esc));
    app.update(escape, at(NOW + 30));
    assert!(app.signals().dialog().is_some(), "keys in the first half second are ignored");
    app.update(Event::Key(KeyEvent::from(KeyCode::Esc)), at(NOW + 31));
    assert!(app.signals().dialog().is_none());
}

#[test]
fn a_group_row_gets_no_signal() {
    let mut app = app(6, 8, SIZE);
    press(&mut app, "3tttgT");
    assert_eq!(app.notice(at(NOW)), Some("unfold this row and select the jobs below it"));
    press(&mut app, "\u{1b}");
}

#[test]
fn the_better_way_contains_no_shell_syntax_of_a_host() {
    let slurm = |job: &str| JobKey::Slurm { cluster: None, job: job.into() };
    let container = |id: &str| JobKey::Container { runtime: "docker".into(), id: id.into() };
    let launcher = JobKey::Launcher(ProcessKey { boot_id: None, pid: 7, start_ticks: Some(1) });
    assert_eq!(end_command(&slurm("3385_4")).as_deref(), Some("scancel 3385_4"));
    assert_eq!(end_command(&container("0123456789abcdef")).as_deref(), Some("docker stop 0123456789ab"));
    let service = |name: &str| alternative(&launcher, Some(&Owner::Service(name.into())));
    assert_eq!(
        service("user@1000.service").as_deref(),
        Some("systemctl stop user@1000.service (systemd may start it again)")
    );
    for hostile in ["1; touch /tmp/x #", "`id`;ls|sh", "$(id)", "-n", "1 2", "1\n2", "", "it's"] {
        assert_eq!(end_command(&slurm(hostile)), None, "{hostile}");
        assert_eq!(end_command(&container(hostile)), None, "{hostile}");
        assert_eq!(service(hostile), None, "{hostile}");
    }
}

#[test]
fn outcome_texts() {
    for (outcome, words) in [
        (ReplyOutcome::Sent, "sent"),
        (ReplyOutcome::Gone, "not sent: the process had ended"),
        (ReplyOutcome::NotPermitted, "not permitted: only its user or root may signal it"),
        (ReplyOutcome::Refused("no pidfd".into()), "refused: no pidfd"),
    ] {
        assert_eq!(outcome_text(&outcome), words);
    }
}
