//! What a filter is asked about: a host, or a row of the combined list on that host.

use crate::fleet::{GpuState, Host, Moment, ProcessTrouble, Row};
use std::time::Duration;

/// A host, and in it a row. What is not known of them is `None`, and then neither a test nor its opposite holds.
#[derive(Debug, Clone, Copy)]
pub struct FilterInput<'a> {
    /// The host.
    pub host: &'a Host,
    /// How many of its GPUs are free; `None` while its readings are not fresh.
    pub free_gpus: Option<u32>,
    /// The row; `None` asks about the host alone.
    pub row: Option<RowFacts<'a>>,
}

/// A row, with what is known of it elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct RowFacts<'a> {
    /// The row.
    pub row: &'a Row,
    /// The least and the most power of the GPUs it uses, in watts.
    pub power_watts: Option<(f32, f32)>,
    /// What diagnosis says of it in the STATE column.
    pub finding: Option<&'static str>,
    /// Whether a rule about work that hangs fires.
    pub is_stuck: bool,
    /// Now.
    pub now: Moment,
}

impl RowFacts<'_> {
    /// For how long its GPUs have been held without work.
    pub(super) fn idle(&self) -> Option<Duration> {
        match self.row.state {
            Some((GpuState::Idle | GpuState::Waiting, since)) => since.map(|since| self.now.since(since)),
            // What works is not idle, however long.
            Some((GpuState::InUse, _)) => Some(Duration::ZERO),
            _ => None,
        }
    }

    /// Whether any of its words of state begins with `word`, upper and lower case being the same; a single letter is
    /// that of the process state.
    pub(super) fn is_in_state(&self, word: &str) -> Option<bool> {
        let row = self.row;
        if let ([letter], Some(state)) = (word.as_bytes(), row.process_state)
            && letter.is_ascii_uppercase()
        {
            return Some(state.letter() == char::from(*letter));
        }
        let begins = |words: &str| {
            let head = words.get(..word.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(word))
        };
        let state = row.state.map(|(state, _)| state.word());
        let ended = row.ended_at.map(|_| "ended");
        let words = [state, row.trouble.map(ProcessTrouble::word), self.finding, ended];
        let is_known = words.iter().any(Option::is_some);
        is_known.then(|| words.into_iter().flatten().any(begins))
    }
}
