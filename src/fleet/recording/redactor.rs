//! Takes user names and arguments out of messages, so that a recording can be given away.

use crate::wire::redact::REDACTED;
use crate::wire::{Hello, Message, ProcessFacts, SafeText, Scope, Snapshot};
use std::collections::HashMap;

/// Replaces user names by `user1`, `user2` in the order in which they appear, the same on every host, and leaves of a
/// command line only the program. What could hold a name beside that (paths, sentences of the host) goes too.
///
/// Which processes are one user's, and one job's, can still be told.
#[derive(Debug, Default)]
pub struct Redactor {
    users: HashMap<SafeText, SafeText>,
}

impl Redactor {
    /// Redacts one message.
    pub fn redact(&mut self, message: &mut Message) {
        match message {
            Message::Hello(hello) => self.hello(hello),
            Message::Inventory(inventory) => {
                self.paths(inventory.nvml_path.iter_mut());
                if let Some(error) = &mut inventory.error {
                    error.message = REDACTED.into();
                }
            }
            Message::Snapshot(snapshot) => self.snapshot(snapshot),
            Message::Farewell { reason } => *reason = REDACTED.into(),
            Message::Echo { .. } | Message::Reply(_) | Message::Unknown => {}
        }
    }

    fn hello(&mut self, hello: &mut Hello) {
        self.user(&mut hello.login_user);
        if let Some(Scope::Container(name)) = &mut hello.scope {
            *name = REDACTED.into();
        }
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) {
        for facts in &mut snapshot.facts {
            self.facts(facts);
        }
        self.paths(snapshot.host.filesystems.iter_mut().map(|filesystem| &mut filesystem.mount_point));
        for error in snapshot.gpus.error.iter_mut().flatten() {
            error.message = REDACTED.into();
        }
        if let Some(error) = &mut snapshot.driver_error {
            error.message = REDACTED.into();
        }
        snapshot.notes.clear();
    }

    fn facts(&mut self, facts: &mut ProcessFacts) {
        self.user(&mut facts.user);
        facts.full_name = None;
        program_only(&mut facts.argv);
        for ancestor in &mut facts.ancestors {
            program_only(&mut ancestor.argv);
        }
        for text in [&mut facts.working_directory, &mut facts.log_path, &mut facts.container_name].into_iter().flatten()
        {
            *text = REDACTED.into();
        }
    }

    fn user(&mut self, user: &mut Option<SafeText>) {
        if let Some(name) = user {
            *name = self.pseudonym(name);
        }
    }

    fn pseudonym(&mut self, name: &SafeText) -> SafeText {
        // Root is no person, and rules and readers know it.
        if *name == "root" {
            return name.clone();
        }
        let next = self.users.len() + 1;
        self.users.entry(name.clone()).or_insert_with(|| SafeText::new(&format!("user{next}"))).clone()
    }

    /// Of a path stays what is no directory of a person.
    fn paths<'a>(&self, paths: impl Iterator<Item = &'a mut SafeText>) {
        const HOMES: [&str; 4] = ["home", "users", "Users", "scratch"];
        for path in paths {
            let mut is_in_homes = false;
            let parts = path.split('/').map(|part| {
                let is_name = std::mem::replace(&mut is_in_homes, HOMES.contains(&part)) && !part.is_empty();
                match self.users.get(&SafeText::new(part)) {
                    Some(user) => user.as_str(),
                    None if is_name => REDACTED,
                    None => part,
                }
            });
            let redacted = parts.collect::<Vec<_>>().join("/");
            *path = SafeText::new(&redacted);
        }
    }
}

/// Keeps the program's name, and says that there was more.
fn program_only(argv: &mut Vec<SafeText>) {
    let Some(program) = argv.first() else { return };
    let name = program.rsplit('/').next().unwrap_or_default();
    // A title that a process gave itself has its arguments in one piece.
    let mut kept = vec![SafeText::new(name.split(' ').next().unwrap_or_default())];
    if argv.len() > 1 || name.contains(' ') {
        kept.push(REDACTED.into());
    }
    *argv = kept;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Ancestor, Filesystem, HostReading, PROTOCOL, codec};

    fn words(line: &str) -> Vec<SafeText> {
        line.split('|').map(SafeText::new).collect()
    }

    fn facts(user: &str) -> ProcessFacts {
        ProcessFacts {
            pid: 5,
            uid: Some(1001),
            user: Some(user.into()),
            full_name: Some("Alice Moreau".into()),
            name: Some("python".into()),
            argv: words("/home/alice/.venv/bin/python|train.py|--name|alice-secret"),
            ancestors: vec![Ancestor { pid: 4, argv: words("torchrun --for alice"), ..Ancestor::default() }],
            working_directory: Some("/home/alice/work".into()),
            log_path: Some("/home/alice/out.log".into()),
            container_name: Some("alice-dev".into()),
            ..ProcessFacts::default()
        }
    }

    fn snapshot(users: &[&str]) -> Message {
        let filesystem = |path: &str| Filesystem { mount_point: path.into(), ..Filesystem::default() };
        Message::Snapshot(Box::new(Snapshot {
            facts: users.iter().map(|user| facts(user)).collect(),
            host: HostReading {
                filesystems: vec![filesystem("/home/alice"), filesystem("/data/bob/x"), filesystem("/")],
                ..HostReading::default()
            },
            notes: vec!["alice was here".into()],
            ..Snapshot::default()
        }))
    }

    #[test]
    fn neither_names_nor_arguments_are_left() {
        let mut redactor = Redactor::default();
        let hello = format!("{{\"hello\":{{\"protocol\":{PROTOCOL},\"probe_version\":\"0\",\"login_user\":\"bob\"}}}}");
        let mut hello = codec::decode(hello.as_bytes()).expect("decodes");
        redactor.redact(&mut hello);
        let mut message = snapshot(&["alice", "root", "bob"]);
        redactor.redact(&mut message);
        let text = String::from_utf8(codec::encode(&message).expect("encodes")).expect("UTF-8");
        for word in ["alice", "Alice", "bob", "train.py", "secret"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        let Message::Snapshot(snapshot) = message else { panic!("a snapshot") };
        let users: Vec<&str> = snapshot.facts.iter().filter_map(|facts| facts.user.as_deref()).collect();
        assert_eq!(users, ["user2", "root", "user1"], "the login user came first");
        assert_eq!(snapshot.facts[0].argv, words("python|***"));
        assert_eq!(snapshot.facts[0].ancestors[0].argv, words("torchrun|***"));
        let mounts: Vec<&str> = snapshot.host.filesystems.iter().map(|it| it.mount_point.as_str()).collect();
        assert_eq!(mounts, ["/home/user2", "/data/user1/x", "/"]);
    }

    #[test]
    fn a_home_whose_owner_is_not_known_has_no_name_either() {
        let mut redactor = Redactor::default();
        let mut message = snapshot(&[]);
        redactor.redact(&mut message);
        let Message::Snapshot(snapshot) = message else { panic!("a snapshot") };
        assert_eq!(snapshot.host.filesystems[0].mount_point, "/home/***");
    }
}
