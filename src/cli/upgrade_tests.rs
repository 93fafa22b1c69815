//! Files of released versions are read without a question and without a loss; see tests/upgrade.

use crate::app::{DisplaySettings, SettingsFile, ViewState};
use crate::config::{HostConfig, HostsFile, Thresholds};
use crate::diagnosis::{Engine, SavedState};
use crate::fleet::recording::{self, HostLine, Line, RecordedEvent};
use crate::fleet::{Fleet, Moment};
use crate::wire::Message;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of each released version.
fn versions() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade");
    let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    assert!(folders.iter().any(|folder| folder.ends_with("0.1.0")), "{folders:?}");
    folders
}

fn text(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every field of `old` is in `new` with the same value; `new` may have more.
#[track_caller]
fn assert_kept(old: &Value, new: &Value, place: &str) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                assert_kept(value, new.get(key).unwrap_or(&Value::Null), &format!("{place}.{key}"));
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            assert_eq!(old.len(), new.len(), "{place}");
            for (old, new) in old.iter().zip(new) {
                assert_kept(old, new, place);
            }
        }
        (Value::Number(old), Value::Number(new)) => assert_eq!(old.as_f64(), new.as_f64(), "{place}"),
        (old, new) => assert_eq!(old, new, "{place}"),
    }
}

#[test]
fn the_memory_of_the_diagnosis_is_kept() {
    for folder in versions() {
        let text = text(&folder, "memory.json");
        let old: Value = serde_json::from_str(&text).unwrap();
        let state = SavedState::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        assert_kept(&old, &serde_json::to_value(&state).unwrap(), "memory.json");
        assert!(!state.idle_watts.is_empty() && !state.notified.is_empty() && !state.snoozed.is_empty());
        Engine::new(Arc::new(Thresholds::default())).restore(state, Moment::default());
    }
}

#[test]
fn the_choices_of_the_screen_are_kept() {
    for folder in versions() {
        let text = text(&folder, "view.json");
        let state = ViewState::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let hosts = ["hgx-01", "hgx-02"].map(|name| Arc::new(HostConfig::named(name)));
        let mut app = crate::app::App::new(
            Fleet::new(&hosts, false, Moment::default()),
            DisplaySettings::default(),
            Engine::new(Arc::new(Thresholds::default())),
            Moment::default(),
        );
        app.restore_view_state(&state);
        assert_kept(
            &serde_json::from_str(&text).unwrap(),
            &serde_json::to_value(app.view_state()).unwrap(),
            "view.json",
        );
    }
}

#[test]
fn configuration_files_are_read_without_an_error() {
    for folder in versions() {
        let settings = SettingsFile::parse("settings.toml", &text(&folder, "settings.toml"));
        assert!(settings.is_ok(), "{}", settings.unwrap_err());
        let hosts = HostsFile::parse("hosts.toml", &text(&folder, "hosts.toml"), Some(Path::new("/home/ann")));
        assert!(hosts.is_ok_and(|hosts| !hosts.entries.is_empty()));
    }
}

#[test]
fn recordings_are_replayed_to_their_end() {
    for folder in versions() {
        let text = text(&folder, "recording.jsonl");
        let lines: Vec<Line> = recording::lines(text.as_bytes())
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        assert_eq!(lines.len(), text.lines().count());
        let snapshots = lines.iter().filter(|line| {
            matches!(line, Line::Host(HostLine { event: RecordedEvent::Wire(Message::Snapshot(_)), .. }))
        });
        assert!(snapshots.count() > 0);
        assert!(
            !lines.iter().any(|line| {
                matches!(line, Line::Host(HostLine { event: RecordedEvent::Wire(Message::Unknown), .. }))
            })
        );
        let mut replay = super::replay::Replay::new(Arc::new(Thresholds::default()));
        for line in lines {
            replay.take(line);
        }
        assert!(replay.fleet().hosts().iter().any(|host| host.snapshot.is_some()));
    }
}
