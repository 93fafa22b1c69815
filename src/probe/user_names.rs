//! Login names and full names by uid. A separate thread looks them up, since a directory server that does not answer
//! must not stop sampling; until then only the uid is known.

use super::blocking::spawn_thread;
use super::nvml::ffi::{PasswdEntry, passwd_entry};
use crate::wire::SafeText;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name service modules run on this stack; untouched pages cost nothing.
const STACK_BYTES: usize = 1 << 20;

/// The names of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserEntry {
    pub(crate) login: SafeText,
    pub(crate) full_name: Option<SafeText>,
}

/// The state of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Pending,
    Known(UserEntry),
    /// There is no user with this uid.
    Missing,
}

/// A cache of user names.
#[derive(Debug, Default)]
pub(crate) struct UserNames {
    lookups: Option<Arc<LookupQueue>>,
}

/// The lookups, shared with the thread. There is one entry per user with a process on a GPU.
#[derive(Debug, Default)]
struct LookupQueue {
    entries: Mutex<Entries>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct Entries {
    by_uid: Vec<(u32, Entry)>,
    /// A lookup finished since the last check.
    changed: bool,
}

impl UserNames {
    /// Returns the names if they are known, else starts a lookup.
    pub(crate) fn name(&mut self, uid: u32) -> Option<UserEntry> {
        let lookups = self.lookups()?;
        let mut entries = lookups.lock();
        match entries.by_uid.iter().find(|(entry_uid, _)| *entry_uid == uid) {
            Some((_, Entry::Known(name))) => Some(name.clone()),
            Some(_) => None,
            None => {
                entries.by_uid.push((uid, Entry::Pending));
                lookups.condvar.notify_all();
                None
            }
        }
    }

    /// Whether a lookup finished since the last call.
    pub(crate) fn take_changed(&self) -> bool {
        self.lookups.as_ref().is_some_and(|lookups| std::mem::take(&mut lookups.lock().changed))
    }

    /// Waits until all lookups are finished, at most `limit`.
    pub(crate) fn wait_until_resolved(&self, limit: Duration) {
        let Some(lookups) = &self.lookups else { return };
        let is_pending = |entries: &mut Entries| entries.by_uid.iter().any(|(_, entry)| *entry == Entry::Pending);
        drop(lookups.condvar.wait_timeout_while(lookups.lock(), limit, is_pending));
    }

    /// The queue. The first call starts its thread.
    fn lookups(&mut self) -> Option<&Arc<LookupQueue>> {
        if self.lookups.is_none() {
            let lookups = Arc::new(LookupQueue::default());
            let worker = Arc::clone(&lookups);
            spawn_thread("users", STACK_BYTES, Box::new(move || worker.serve())).ok()?;
            self.lookups = Some(lookups);
        }
        self.lookups.as_ref()
    }
}

impl LookupQueue {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the lookups one by one until the process ends.
    fn serve(&self) {
        let mut entries = self.lock();
        loop {
            let Some(&(uid, _)) = entries.by_uid.iter().find(|(_, entry)| *entry == Entry::Pending) else {
                entries = self.condvar.wait(entries).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(entries);
            let result = passwd_entry(uid);
            entries = self.lock();
            entries.by_uid.retain(|(entry_uid, _)| *entry_uid != uid);
            entries.by_uid.extend(match result {
                Ok(Some(entry)) => Some((uid, Entry::Known(name_of(&entry)))),
                Ok(None) => Some((uid, Entry::Missing)),
                // Try again later: the name service failed.
                Err(_) => None,
            });
            entries.changed = true;
            self.condvar.notify_all();
        }
    }
}

/// The full name is the first part of GECOS, where `&` stands for the capitalized login name (passwd(5)).
fn name_of(entry: &PasswdEntry) -> UserEntry {
    let login = String::from_utf8_lossy(&entry.name);
    let gecos = String::from_utf8_lossy(&entry.gecos);
    let full_name = gecos.split(',').next().unwrap_or_default().trim();
    let mut capital = login.to_string();
    if let Some(first) = capital.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let full_name = full_name.replace('&', &capital);
    UserEntry { login: SafeText::new(&login), full_name: (!full_name.is_empty()).then(|| SafeText::new(&full_name)) }
}

/// Returns the login name of `uid` in the content of `/etc/passwd`. Knows only local users, but cannot block.
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
        assert_eq!((name.login.as_str(), name.full_name.as_deref()), ("alice", Some("Alice Example")));
        assert_eq!(name_of(&entry("bob", "& Example")).full_name.as_deref(), Some("Bob Example"));
        assert_eq!(name_of(&entry("eve", ",,,")).full_name, None);
        assert_eq!(name_of(&entry("élan", "&")).full_name.as_deref(), Some("élan"));
    }

    #[test]
    fn local_logins_are_found() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nbroken\nalice:x:1000:1000:A,,,:/home/a:/bin/sh\n";
        assert_eq!(local_login(passwd, 1000).as_deref(), Some("alice"));
        assert_eq!(local_login(passwd, 1001), None);
    }

    #[test]
    fn names_are_resolved_by_the_name_service() {
        let mut users = UserNames::default();
        assert_eq!(users.name(0), None);
        users.wait_until_resolved(Duration::from_secs(30));
        assert_eq!(users.name(0).map(|name| name.login), Some("root".into()));
        assert!(users.take_changed());
        assert!(!users.take_changed());
    }
}
