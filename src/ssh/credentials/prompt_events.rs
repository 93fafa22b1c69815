//! What the broker tells the screen, in order and bounded.

use crate::ssh::prompt::{Prompt, PromptId};
use std::collections::VecDeque;

/// Something about prompts that a person must see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptEvent {
    /// A prompt is open. One that was asked before comes again, under the same id, when more hosts wait for it.
    Opened(Prompt),
    /// Nobody waits for this prompt any more.
    Withdrawn(PromptId),
}

/// Events that wait for their reader, at most one a prompt: a slow reader sees the latest state, never a backlog.
#[derive(Debug, Default)]
pub(super) struct PromptEventQueue {
    events: VecDeque<PromptEvent>,
}

impl PromptEventQueue {
    pub(super) fn push_prompt(&mut self, prompt: Prompt) {
        let waiting = self.events.iter_mut().find_map(|event| match event {
            PromptEvent::Opened(earlier) if earlier.id == prompt.id => Some(earlier),
            _ => None,
        });
        match waiting {
            Some(earlier) => *earlier = prompt,
            None => self.events.push_back(PromptEvent::Opened(prompt)),
        }
    }

    /// `seen`: whether the reader has the prompt; if not, neither event need reach it.
    pub(super) fn push_withdrawn(&mut self, id: PromptId, seen: bool) {
        self.events.retain(|event| !matches!(event, PromptEvent::Opened(prompt) if prompt.id == id));
        if seen {
            self.events.push_back(PromptEvent::Withdrawn(id));
        }
    }

    pub(super) fn next(&mut self) -> Option<PromptEvent> {
        self.events.pop_front()
    }
}
