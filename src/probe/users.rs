//! Login names. They are asked for on a thread of their own, since a directory server that does not answer must stop
//! nothing; until a name is known there is only the uid.

use crate::probe::nvml::raw::{PasswdEntry, passwd_entry};
use crate::wire::SafeText;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Modules of the name service run on this stack; pages that are not touched cost nothing.
const STACK_BYTES: usize = 1 << 20;
/// Questions that may wait. What finds no room is asked again in a later sample.
const QUEUE: usize = 64;

/// A user's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserName {
    pub(crate) login: SafeText,
    pub(crate) full: Option<SafeText>,
}

#[derive(Debug)]
enum Entry {
    Asked,
    Known(UserName),
    /// There is no such user.
    Missing,
}

type Answer = (u32, Result<Option<PasswdEntry>, i32>);

/// The names known so far.
#[derive(Debug, Default)]
pub(crate) struct Users {
    entries: BTreeMap<u32, Entry>,
    asker: Option<(SyncSender<u32>, Receiver<Answer>)>,
}

impl Users {
    /// The name, if it is known; else it is asked for.
    pub(crate) fn name(&mut self, uid: u32) -> Option<&UserName> {
        if !self.entries.contains_key(&uid) && self.ask(uid) {
            self.entries.insert(uid, Entry::Asked);
        }
        match self.entries.get(&uid) {
            Some(Entry::Known(name)) => Some(name),
            _ => None,
        }
    }

    /// Takes the answers that have come; whether there were any.
    pub(crate) fn collect(&mut self) -> bool {
        let mut any = false;
        while let Some(answer) = self.asker.as_ref().and_then(|(_, answers)| answers.try_recv().ok()) {
            self.take(answer);
            any = true;
        }
        any
    }

    /// Waits until every question is answered, at most this long.
    pub(crate) fn settle(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.entries.values().any(|entry| matches!(entry, Entry::Asked)) {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.asker.as_ref().and_then(|(_, answers)| answers.recv_timeout(rest).ok()) {
                Some(answer) => self.take(answer),
                None => return,
            }
        }
    }

    fn take(&mut self, (uid, answer): Answer) {
        match answer {
            Ok(Some(entry)) => drop(self.entries.insert(uid, Entry::Known(name_of(&entry)))),
            Ok(None) => drop(self.entries.insert(uid, Entry::Missing)),
            // A name service that failed may answer later.
            Err(_) => drop(self.entries.remove(&uid)),
        }
    }

    fn ask(&mut self, uid: u32) -> bool {
        if self.asker.is_none() {
            let (questions, asked) = sync_channel::<u32>(QUEUE);
            let (answered, answers) = sync_channel::<Answer>(QUEUE);
            let thread = std::thread::Builder::new().name("users".to_owned()).stack_size(STACK_BYTES);
            let started = thread.spawn(move || {
                while let Ok(uid) = asked.recv() {
                    if answered.send((uid, passwd_entry(uid))).is_err() {
                        return;
                    }
                }
            });
            if started.is_ok() {
                self.asker = Some((questions, answers));
            }
        }
        self.asker.as_ref().is_some_and(|(questions, _)| questions.try_send(uid).is_ok())
    }
}

/// The full name is the first part of GECOS, in which `&` stands for the login name with a capital (passwd(5)).
fn name_of(entry: &PasswdEntry) -> UserName {
    let login = String::from_utf8_lossy(&entry.name);
    let gecos = String::from_utf8_lossy(&entry.gecos);
    let full = gecos.split(',').next().unwrap_or_default().trim();
    let mut capital = login.to_string();
    if let Some(first) = capital.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let full = full.replace('&', &capital);
    UserName { login: SafeText::new(&login), full: (!full.is_empty()).then(|| SafeText::new(&full)) }
}

/// The login name of `uid` in the text of `/etc/passwd`. It answers at once, and knows local users only.
pub(crate) fn local_login(passwd: &[u8], uid: u32) -> Option<SafeText> {
    passwd.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        let login = fields.next()?;
        let number = std::str::from_utf8(fields.nth(1)?).ok()?;
        (number.parse() == Ok(uid)).then(|| SafeText::from_bytes(login))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, gecos: &str) -> PasswdEntry {
        PasswdEntry { name: name.into(), gecos: gecos.into() }
    }

    #[test]
    fn the_full_name_is_the_first_part_of_gecos() {
        let name = name_of(&entry("alice", "Alice Example,Room 3,,"));
        assert_eq!((name.login.as_str(), name.full.as_deref()), ("alice", Some("Alice Example")));
        assert_eq!(name_of(&entry("bob", "& Example")).full.as_deref(), Some("Bob Example"));
        assert_eq!(name_of(&entry("eve", ",,,")).full, None);
        assert_eq!(name_of(&entry("élan", "&")).full.as_deref(), Some("élan"));
    }

    #[test]
    fn local_logins_are_found() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:1000:A,,,:/home/a:/bin/sh\n";
        assert_eq!(local_login(passwd, 1000).as_deref(), Some("alice"));
        assert_eq!(local_login(passwd, 1001), None);
    }

    #[test]
    fn names_come_from_the_name_service() {
        let mut users = Users::default();
        assert_eq!(users.name(0), None);
        users.settle(Duration::from_secs(30));
        assert_eq!(users.name(0).map(|name| name.login.as_str()), Some("root"));
        assert!(!users.collect());
    }
}
