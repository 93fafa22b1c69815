use super::*;
use crate::app::testing::{LATER, NOW, app, app_with_hung_jobs, at, press};
use crate::app::{Event, View};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const SIZE: (u16, u16) = (120, 40);

fn key(app: &mut App, character: char, seconds: u64) -> Vec<Effect> {
    app.update(Event::Key(KeyEvent::new(KeyCode::Char(character), KeyModifiers::NONE)), at(seconds))
}

#[track_caller]
fn copied(app: &mut App, seconds: u64) -> (String, String) {
    match key(app, 'y', seconds).pop() {
        Some(Effect::Copy(copied)) => (copied.what.clone(), copied.text()),
        other => panic!("nothing was copied: {other:?}, {:?}", app.notice(at(seconds))),
    }
}

/// Selects the GPU in this state, in the view of its host.
#[track_caller]
fn select_gpu_in_state(app: &mut App, state: GpuState, seconds: u64) {
    let hosts = app.fleet().hosts().iter().map(|host| (host.id, app.host_summary(host).expect("figures")));
    let found = hosts.into_iter().find_map(|(id, summary)| {
        let position = summary.gpus.iter().position(|gpu| gpu.state == state)?;
        Some((id.0 as usize, position))
    });
    let (host, gpu) = found.expect("a GPU in this state");
    app.screen.host = host;
    key(app, '1', seconds);
    app.update(Event::Key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE)), at(seconds));
    assert!(matches!(app.screen().view(), View::Host(_)));
    app.screen.gpu = gpu;
}

#[test]
fn a_host_gives_its_ssh_command() {
    let mut app = app(2, 8, SIZE);
    assert_eq!(copied(&mut app, NOW), ("the ssh command of hgx-01".into(), "ssh hgx-01".into()));
    press(&mut app, "→L");
    assert_eq!(copied(&mut app, NOW).1, "ssh hgx-02");
}

#[test]
fn a_process_gives_its_pid_line() {
    let mut app = app(2, 8, SIZE);
    press(&mut app, "3/user:erika host:hgx-02\n");
    let (what, line) = copied(&mut app, NOW);
    assert_eq!(what, "pid 5100 on hgx-02");
    assert_eq!(
        line,
        "hgx-02: pid 5100 (erika), GPUs 0,1,2,3,4,5,6,7, 492 GiB: torchrun --nproc_per_node 8 pretrain.py --bf16 --data \
         /scratch/c4"
    );
}

#[test]
fn a_free_gpu_gives_the_two_lines_of_free() {
    let mut app = app(2, 8, SIZE);
    select_gpu_in_state(&mut app, GpuState::Free, NOW);
    let (what, lines) = copied(&mut app, NOW);
    assert_eq!(what, "what to type for GPU 0 of hgx-01");
    assert_eq!(lines, "ssh hgx-01\nexport CUDA_VISIBLE_DEVICES=GPU-8f3a1c2e-0000");
}

#[test]
fn an_idle_or_hung_gpu_gives_a_note_of_facts_to_its_user() {
    let mut app = app_with_hung_jobs(5, SIZE);
    select_gpu_in_state(&mut app, GpuState::Hung, LATER);
    let (what, note) = copied(&mut app, LATER);
    assert_eq!(what, "a note to dmitri");
    assert_eq!(
        note,
        "Hi Dmitri, on hgx-04 your `sft.py` (pid 5350) has held GPUs 4,5 (139 GiB) since 12 Nov 15:40. Since 13:55 GPU 4 \
         draws 108 of 700 W, so it may be stuck. If you no longer need it: `kill 5350`. Seen 14:20."
    );
    select_gpu_in_state(&mut app, GpuState::Idle, LATER);
    let (_, note) = copied(&mut app, LATER);
    assert_eq!(
        note,
        "Hi Alice, on hgx-01 your `ipykernel_launcher` (pid 5008) has held GPU 7 (30 GiB) since 12 Nov 18:00. Since 13:55 \
         it has been idle. If you no longer need it: `kill 5008`. Seen 14:20."
    );
}

#[test]
fn a_shell_opens_on_the_host_under_the_selection() {
    let mut app = app(2, 8, SIZE);
    press(&mut app, "→");
    assert!(matches!(press(&mut app, "s")[..], [Effect::Shell(HostId(1))]));
    press(&mut app, "3/host:hgx-01\n");
    assert!(matches!(press(&mut app, "s")[..], [Effect::Shell(HostId(0))]));
    app.settings.is_readonly = true;
    assert!(press(&mut app, "s").is_empty());
    assert_eq!(app.notice(at(NOW)), Some("the shell is off: gpufleet runs with --readonly, or the settings say so"));
}
