//! Login names. They are asked for on a thread of their own, since a directory server that does not answer must stop
//! nothing; until a name is known there is only the uid.

use crate::probe::blocking::spawn_thread;
use crate::probe::nvml::raw::{PasswdEntry, passwd_entry};
use crate::wire::SafeText;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Modules of the name service run on this stack; pages that are not touched cost nothing.
const STACK_BYTES: usize = 1 << 20;

/// A user's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserName {
    pub(crate) login: SafeText,
    pub(crate) full: Option<SafeText>,
}

/// What is known of one uid.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Asked,
    Known(UserName),
    /// There is no such user.
    Missing,
}

/// The names known so far.
#[derive(Debug, Default)]
pub(crate) struct Users {
    desk: Option<Arc<Desk>>,
}

/// Where questions and answers lie. There are as many entries as users who run something on a GPU.
#[derive(Debug, Default)]
struct Desk {
    entries: Mutex<Entries>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Entries {
    by_uid: Vec<(u32, Entry)>,
    /// Answers came since the last look.
    news: bool,
}

impl Users {
    /// The name, if it is known; else it is asked for.
    pub(crate) fn name(&mut self, uid: u32) -> Option<UserName> {
        let desk = self.desk()?;
        let mut entries = desk.lock();
        match entries.by_uid.iter().find(|(known, _)| *known == uid) {
            Some((_, Entry::Known(name))) => Some(name.clone()),
            Some(_) => None,
            None => {
                entries.by_uid.push((uid, Entry::Asked));
                desk.bell.notify_all();
                None
            }
        }
    }

    /// Whether answers came since this was asked last.
    pub(crate) fn have_news(&self) -> bool {
        self.desk.as_ref().is_some_and(|desk| std::mem::take(&mut desk.lock().news))
    }

    /// Waits until every question is answered, at most this long.
    pub(crate) fn settle(&self, limit: Duration) {
        let Some(desk) = &self.desk else { return };
        let deadline = Instant::now() + limit;
        let mut entries = desk.lock();
        while entries.by_uid.iter().any(|(_, entry)| *entry == Entry::Asked) {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return;
            }
            entries = desk.bell.wait_timeout(entries, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The desk, and a thread that serves it from the first question on.
    fn desk(&mut self) -> Option<&Arc<Desk>> {
        if self.desk.is_none() {
            let desk = Arc::new(Desk::default());
            let served = Arc::clone(&desk);
            spawn_thread("users", STACK_BYTES, Box::new(move || served.serve())).ok()?;
            self.desk = Some(desk);
        }
        self.desk.as_ref()
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one question after the other, for as long as the process lives.
    fn serve(&self) {
        let mut entries = self.lock();
        loop {
            let Some(&(uid, _)) = entries.by_uid.iter().find(|(_, entry)| *entry == Entry::Asked) else {
                entries = self.bell.wait(entries).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(entries);
            let answer = passwd_entry(uid);
            entries = self.lock();
            entries.by_uid.retain(|(known, _)| *known != uid);
            entries.by_uid.extend(match answer {
                Ok(Some(entry)) => Some((uid, Entry::Known(name_of(&entry)))),
                Ok(None) => Some((uid, Entry::Missing)),
                // A name service that failed may answer the next time it is asked.
                Err(_) => None,
            });
            entries.news = true;
            self.bell.notify_all();
        }
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
        assert_eq!(users.name(0).map(|name| name.login), Some("root".into()));
        assert!(users.have_news());
        assert!(!users.have_news());
    }
}
