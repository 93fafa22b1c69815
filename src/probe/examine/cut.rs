//! Cuts texts, lists and whole examinations to their limits.

use crate::wire::codec::encode;
use crate::wire::{Examination, ExaminationPart, ExaminationRefusal, Message, Reply, ReplyOutcome, SafeText};

/// Maximum size of a reply, in bytes of its line.
pub(super) const MAX_REPLY_BYTES: usize = 64 * 1024;

/// Returns the beginning of `text`, at most `limit` bytes, with `…` in place of a rest.
pub(super) fn beginning(text: &str, limit: usize) -> SafeText {
    if text.len() <= limit {
        return text.into();
    }
    let mut end = limit - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut kept = text[..end].to_owned();
    kept.push('…');
    kept.into()
}

/// Returns the end of `text`, at most `limit` bytes, with `…` in place of the rest.
pub(super) fn end(text: &str, limit: usize) -> SafeText {
    if text.len() <= limit {
        return text.into();
    }
    let mut start = text.len() - limit + '…'.len_utf8();
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let mut kept = "…".to_owned();
    kept.push_str(&text[start..]);
    kept.into()
}

/// Moves the `limit` entries with the greatest `rank` to a new list, the greatest first, and leaves the others in `list`.
/// The code of a sort is three kilobytes larger.
pub(super) fn take_greatest<T>(list: &mut Vec<T>, limit: usize, rank: &dyn Fn(&T) -> u64) -> Vec<T> {
    let mut taken = Vec::new();
    while taken.len() < limit && !list.is_empty() {
        let mut best = 0;
        for at in 1..list.len() {
            if rank(&list[at]) > rank(&list[best]) {
                best = at;
            }
        }
        taken.push(list.remove(best));
    }
    taken
}

/// Returns the reply as a message whose line has at most [`MAX_REPLY_BYTES`]. Lists are cut step by step until it fits.
pub(super) fn reply_that_fits(id: u64, outcome: ReplyOutcome) -> Message {
    let mut message = Message::Reply(Reply { id, outcome });
    for step in STEPS {
        if encode(&message).is_ok_and(|line| line.len() <= MAX_REPLY_BYTES) {
            break;
        }
        if let Message::Reply(Reply { outcome: ReplyOutcome::Examined(examination), .. }) = &mut message {
            step(examination);
        }
    }
    message
}

/// The steps by which an examination is cut, the smallest loss first. The last one leaves no list.
const STEPS: [fn(&mut Examination); 5] = [
    |examination| {
        cut_frames(examination, 24, 8);
        cut_communicators(examination, 32, 8);
        cut_groups(examination, 8, 4);
    },
    |examination| {
        cut_frames(examination, 12, 4);
        cut_communicators(examination, 16, 4);
        cut_groups(examination, 4, 4);
    },
    |examination| {
        cut_frames(examination, 8, 2);
        cut_communicators(examination, 8, 2);
        cut_groups(examination, 2, 4);
        cut_others(examination, 16);
    },
    |examination| {
        drop_ras(examination);
        cut_groups(examination, 2, 1);
        cut_others(examination, 8);
    },
    |examination| {
        cut_frames(examination, 4, 1);
        cut_others(examination, 0);
    },
];

/// Cuts the frames of the main thread to `main`, and those of other threads to `other`.
fn cut_frames(examination: &mut Examination, main: usize, other: usize) {
    let Some(stacks) = &mut examination.stacks else { return };
    let limits = [main].into_iter().chain(std::iter::repeat(other));
    for (thread, limit) in stacks.threads.iter_mut().zip(limits) {
        cut(&mut thread.frames, limit, &mut thread.frames_left_out);
    }
}

/// Cuts the list of communicators, and the lists of ranks in each.
fn cut_communicators(examination: &mut Examination, limit: usize, ranks: usize) {
    let Some(report) = &mut examination.ras else { return };
    cut(&mut report.communicators, limit, &mut report.communicators_left_out);
    for communicator in &mut report.communicators {
        cut(&mut communicator.failed_ranks, ranks, &mut communicator.failed_left_out);
        cut(&mut communicator.missing_ranks, ranks, &mut communicator.missing_left_out);
        for operation in &mut communicator.operations {
            cut(&mut operation.named, ranks, &mut operation.named_left_out);
        }
    }
}

/// Cuts the list of process groups in a dump of the Flight Recorder, and the frames of each operation.
fn cut_groups(examination: &mut Examination, limit: usize, frames: usize) {
    let Some(dump) = &mut examination.flight_recorder else { return };
    cut(&mut dump.groups, limit, &mut dump.groups_left_out);
    for group in &mut dump.groups {
        for operation in group.waiting.iter_mut().chain(&mut group.last_ended) {
            operation.frames.truncate(frames);
        }
    }
}

/// Cuts every other list.
fn cut_others(examination: &mut Examination, limit: usize) {
    cut(&mut examination.links, limit, &mut examination.links_left_out);
    if let Some(stacks) = &mut examination.stacks {
        cut(&mut stacks.threads, limit.max(1), &mut stacks.threads_left_out);
    }
    if let Some(process) = &mut examination.process {
        process.variables.truncate(limit);
        cut(&mut process.peers, limit, &mut process.peers_left_out);
        for group in process.threads.drain(limit.min(process.threads.len())..) {
            process.threads_left_out += group.count;
        }
    }
}

fn drop_ras(examination: &mut Examination) {
    if examination.ras.take().is_some() {
        examination.refused.push(ExaminationRefusal::new(
            ExaminationPart::Ras,
            "the report is longer than a reply may be",
            "request it without the other parts",
        ));
    }
}

/// Cuts a list to `limit` and counts the others.
pub(super) fn cut<T>(list: &mut Vec<T>, limit: usize, left_out: &mut u32) {
    *left_out += list.len().saturating_sub(limit) as u32;
    list.truncate(limit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        Communicator, FlightRecorderDump, Frame, LinkErrorCount, LinkReading, NamedRank, OperationCounts, Peer,
        ProcessExamination, RanksAtCount, RasReport, RecordedGroup, RecordedOperation, StackDump, ThreadGroup,
        ThreadStack, codec::decode, limits,
    };

    #[test]
    fn texts_are_cut_between_characters() {
        for (text, limit, first, last) in [
            ("train.py", 8, "train.py", "train.py"),
            ("/data/train.py", 11, "/data/tr…", "…train.py"),
            ("ääää", 6, "ä…", "…ä"),
        ] {
            assert_eq!((beginning(text, limit), end(text, limit)), (first.into(), last.into()), "{text}");
        }
    }

    #[test]
    fn the_greatest_entries_come_first_and_equal_ones_keep_their_order() {
        let mut list = vec![(1, 'a'), (3, 'b'), (1, 'c'), (3, 'd'), (2, 'e')];
        let taken = take_greatest(&mut list, 4, &|entry| entry.0);
        assert_eq!((taken, list), (vec![(3, 'b'), (3, 'd'), (2, 'e'), (1, 'a')], vec![(1, 'c')]));
        assert!(take_greatest::<u8>(&mut Vec::new(), 4, &|_| 0).is_empty());
    }

    /// An examination with every list at its limit of the wire, and texts of this length.
    fn largest(length: usize) -> Examination {
        // A quotation mark takes two bytes in JSON.
        let text = || SafeText::new(&"\"".repeat(length));
        let rank = NamedRank {
            host: Some(text()),
            pid: Some(u32::MAX),
            gpu: Some(u32::MAX),
            count: Some(u64::MAX),
            ..NamedRank::default()
        };
        let ranks = vec![rank; limits::MAX_NAMED_RANKS];
        let operation = OperationCounts {
            name: text(),
            counts: vec![RanksAtCount { count: u64::MAX, ranks: u32::MAX }; limits::MAX_COUNTS],
            fingerprint: Some(u64::MAX),
            named: ranks.clone(),
            ..OperationCounts::default()
        };
        let communicator = Communicator {
            hash: text(),
            secondary_hash: text(),
            operations: vec![operation; limits::MAX_OPERATIONS],
            failed_ranks: ranks.clone(),
            missing_ranks: ranks,
            ..Communicator::default()
        };
        let link = LinkReading {
            device: text(),
            layer: Some(text()),
            state: Some(text()),
            rate: Some(text()),
            sent_bytes: Some(u64::MAX),
            received_bytes: Some(u64::MAX),
            errors: vec![LinkErrorCount { name: text(), count: u64::MAX }; limits::MAX_LINK_ERRORS],
            ..LinkReading::default()
        };
        let frame = Frame { function: text(), file: text(), line: Some(u32::MAX) };
        let frames = vec![frame; limits::MAX_FRAMES];
        let thread = ThreadStack { name: text(), frames: frames.clone(), ..ThreadStack::default() };
        let group = ThreadGroup { name: text(), wait_channel: text(), count: 2, cpu_ms: u64::MAX };
        let process = ProcessExamination {
            threads: vec![group; limits::MAX_THREAD_GROUPS],
            variables: vec![text(); limits::MAX_VARIABLES],
            peers: vec![Peer { address: text(), port: u16::MAX, count: u32::MAX }; limits::MAX_PEERS],
            ..ProcessExamination::default()
        };
        let refusal =
            ExaminationRefusal { part: ExaminationPart::Unknown, reason: text(), remedy: text(), is_risk: true };
        let recorded = RecordedOperation { name: text(), frames: frames[..8].to_vec(), ..RecordedOperation::default() };
        let recorded_group = RecordedGroup {
            name: text(),
            description: text(),
            waiting: vec![recorded.clone(); limits::MAX_RECORDED_OPERATIONS],
            last_ended: Some(recorded),
            ..RecordedGroup::default()
        };
        let dump = FlightRecorderDump {
            file: text(),
            version: text(),
            groups: vec![recorded_group; limits::MAX_RECORDED_GROUPS],
            ..FlightRecorderDump::default()
        };
        let threads = vec![thread; limits::MAX_STACKS];
        let communicators = vec![communicator; limits::MAX_COMMUNICATORS];
        Examination {
            process: Some(Box::new(process)),
            stacks: Some(Box::new(StackDump { tool: text(), threads, threads_left_out: 0 })),
            ras: Some(Box::new(RasReport { communicators, ..RasReport::default() })),
            links: vec![link; limits::MAX_LINKS],
            links_left_out: 0,
            flight_recorder: Some(Box::new(dump)),
            refused: vec![refusal; ExaminationPart::ALL.len()],
        }
    }

    fn fitted(examination: Examination) -> Examination {
        let message = reply_that_fits(u64::MAX, ReplyOutcome::Examined(Box::new(examination)));
        let line = encode(&message).unwrap();
        assert!(line.len() <= MAX_REPLY_BYTES, "{} bytes", line.len());
        assert_eq!(decode(line.trim_ascii_end()).unwrap(), message);
        let Message::Reply(Reply { outcome: ReplyOutcome::Examined(examination), .. }) = message else { panic!() };
        *examination
    }

    #[test]
    fn the_largest_examination_fits_into_a_reply() {
        for length in [0, 1, 16, 64, 192, 256] {
            let examination = fitted(largest(length));
            let stacks = examination.stacks.expect("the main thread is kept");
            let main = &stacks.threads[0];
            assert_eq!(main.frames.len() + main.frames_left_out as usize, limits::MAX_FRAMES);
            assert_eq!(stacks.threads.len() + stacks.threads_left_out as usize, limits::MAX_STACKS);
            assert_eq!(examination.links.len() + examination.links_left_out as usize, limits::MAX_LINKS);
            let process = examination.process.expect("it is kept");
            assert_eq!(process.peers.len() + process.peers_left_out as usize, limits::MAX_PEERS);
            assert_eq!(
                2 * process.threads.len() + process.threads_left_out as usize,
                2 * limits::MAX_THREAD_GROUPS,
                "threads are counted, not groups"
            );
            let refusal = "the report is longer than a reply may be";
            let is_refused = examination.refused.iter().any(|refused| refused.reason == refusal);
            assert_ne!(examination.ras.is_some(), is_refused, "{length}");
        }
    }

    #[test]
    fn the_frames_of_other_threads_are_cut_first() {
        let only_stacks = |length| Examination { stacks: largest(length).stacks, ..Examination::default() };
        let stacks = fitted(only_stacks(60)).stacks.unwrap();
        let counts: Vec<usize> = stacks.threads.iter().map(|thread| thread.frames.len()).collect();
        assert_eq!((counts[0], counts[15], stacks.threads[15].frames_left_out), (24, 8, 16));
        assert_eq!(fitted(only_stacks(1)), only_stacks(1), "a short one is not cut");
    }

    #[test]
    fn other_outcomes_are_not_changed() {
        let message = reply_that_fits(7, ReplyOutcome::Gone);
        assert_eq!(message, Message::Reply(Reply { id: 7, outcome: ReplyOutcome::Gone }));
    }
}
