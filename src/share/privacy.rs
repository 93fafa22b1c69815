//! Leaves out what a viewer of another account must not see of the processes on the hosts.
//!
//! The level applies to all processes alike, also to those of the collector's account. A viewer of the collector's own
//! account sees everything: it could read the collector's files and memory anyway.

use super::frame::{HostFrame, LinkFrame};
use crate::config::{HostConfig, Sharing};
use crate::fleet::recording::{RecordedError, program_only};
use crate::wire::{Message, Owner, ProcessFacts, SafeText};

/// Who reads the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The account of the collector, or root.
    Own,
    /// Another account, in the group of the socket.
    Group,
}

impl Audience {
    /// How much a host shares with this audience.
    pub(super) fn sharing(self, config: &HostConfig) -> Sharing {
        match self {
            Self::Own => Sharing::Commands,
            Self::Group => config.sharing,
        }
    }
}

/// Whether a line must be changed at all before it goes out.
pub(super) fn changes(sharing: Sharing, frame: &HostFrame) -> bool {
    match (sharing, &frame.wire) {
        (Sharing::Commands, _) => false,
        (_, Some(Message::Snapshot(snapshot))) => {
            let names_users = !snapshot.notes.is_empty() || snapshot.host.slurm_jobs.is_some();
            !snapshot.facts.is_empty() || (sharing == Sharing::None && names_users)
        }
        (Sharing::None, Some(Message::Hello(_))) => true,
        (Sharing::None, None) => frame.link.is_some(),
        _ => false,
    }
}

/// Removes from a line what this level does not share.
pub(super) fn redact(sharing: Sharing, frame: &mut HostFrame) {
    match &mut frame.wire {
        _ if sharing == Sharing::Commands => {}
        Some(Message::Snapshot(snapshot)) => {
            snapshot.facts.iter_mut().for_each(|facts| redact_facts(sharing, facts));
            if sharing == Sharing::None {
                snapshot.notes.clear();
                snapshot.host.slurm_jobs.iter_mut().flatten().for_each(|job| job.user = None);
            }
        }
        Some(Message::Hello(hello)) if sharing == Sharing::None => hello.login_user = None,
        _ => {}
    }
    if let (Sharing::None, Some(LinkFrame::Down { error, .. } | LinkFrame::NeedsUser { error })) =
        (sharing, &mut frame.link)
    {
        // Messages of servers contain account names.
        *error = RecordedError { kind: error.kind.clone(), message: error.kind.clone(), hint: None };
    }
}

fn redact_facts(sharing: Sharing, facts: &mut ProcessFacts) {
    facts.full_name = None;
    facts.working_directory = None;
    facts.log_path = None;
    facts.container_name = None;
    program_only(&mut facts.argv);
    for ancestor in &mut facts.ancestors {
        program_only(&mut ancestor.argv);
    }
    // The names of services and login sessions may contain those of users.
    if let Some(Owner::Service(_) | Owner::Session(_)) = facts.owner {
        facts.owner = None;
    }
    if sharing == Sharing::None {
        (facts.user, facts.uid, facts.name) = (None, None, None);
        facts.argv.clear();
        facts.listening_ports.clear();
        facts.owner = facts.owner.take().filter(|owner| matches!(owner, Owner::Slurm { .. }));
        for ancestor in &mut facts.ancestors {
            (ancestor.uid, ancestor.name) = (None, SafeText::default());
            ancestor.argv.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::builder;
    use crate::wire::{Ancestor, HostReading, SlurmJob, Snapshot};

    const SECRETS: [&str; 7] = [
        "train.py",
        "/home/alice",
        "Alice Example",
        "/data/alice.log",
        "box-of-alice",
        "user@1000.service",
        "evaluate",
    ];

    fn facts() -> ProcessFacts {
        let argv: Vec<SafeText> = vec!["/usr/bin/python3".into(), "train.py".into(), "evaluate".into()];
        ProcessFacts {
            pid: 7,
            start_ticks: Some(70),
            uid: Some(1000),
            user: Some("alice".into()),
            full_name: Some("Alice Example".into()),
            name: Some("python3".into()),
            argv: argv.clone(),
            ancestors: vec![Ancestor { pid: 5, start_ticks: 50, uid: Some(1000), name: "torchrun".into(), argv }],
            working_directory: Some("/home/alice".into()),
            log_path: Some("/data/alice.log".into()),
            container_name: Some("box-of-alice".into()),
            owner: Some(Owner::Service("user@1000.service".into())),
            ..ProcessFacts::default()
        }
    }

    fn snapshot() -> HostFrame {
        let job = SlurmJob { job: "3385".into(), user: Some("alice".into()), gpus: vec![0] };
        let host = HostReading { slurm_jobs: Some(vec![job]), ..HostReading::default() };
        let snapshot = Snapshot { host, facts: vec![facts()], notes: vec!["a note".into()], ..Snapshot::default() };
        HostFrame { name: "hgx-01".into(), wire: Some(Message::Snapshot(Box::new(snapshot))), ..HostFrame::default() }
    }

    fn redacted(sharing: Sharing) -> String {
        let mut frame = snapshot();
        assert_eq!(changes(sharing, &frame), sharing != Sharing::Commands);
        redact(sharing, &mut frame);
        serde_json::to_string(&frame).expect("encodes")
    }

    #[test]
    fn each_level_leaves_out_more() {
        let all = redacted(Sharing::Commands);
        assert!(SECRETS.iter().all(|secret| all.contains(secret)), "{all}");
        let names = redacted(Sharing::Names);
        assert!(!SECRETS.iter().any(|secret| names.contains(secret)), "{names}");
        assert!(names.contains("\"alice\"") && names.contains("python3") && names.contains("torchrun"), "{names}");
        let none = redacted(Sharing::None);
        for word in SECRETS.iter().chain(&["alice", "python3", "torchrun", "1000", "a note"]) {
            assert!(!none.contains(word), "{word}: {none}");
        }
        assert!(
            none.contains("\"pid\":7") && none.contains("\"start_ticks\":50"),
            "the job stays recognizable: {none}"
        );
    }

    #[test]
    fn without_names_errors_and_logins_are_left_out_as_well() {
        let error = RecordedError {
            kind: "authentication".into(),
            message: "alice@hgx-01: permission denied".into(),
            hint: Some("ssh alice@hgx-01".into()),
        };
        let mut frame = HostFrame { link: Some(LinkFrame::NeedsUser { error }), ..HostFrame::default() };
        assert!(changes(Sharing::None, &frame) && !changes(Sharing::Names, &frame));
        redact(Sharing::None, &mut frame);
        let mut hello =
            HostFrame { wire: Some(Message::Hello(builder::hello("b".into(), "alice", 1000))), ..HostFrame::default() };
        assert!(changes(Sharing::None, &hello));
        redact(Sharing::None, &mut hello);
        for frame in [frame, hello] {
            let text = serde_json::to_string(&frame).expect("encodes");
            assert!(!text.contains("alice"), "{text}");
        }
    }
}
