//! The prompts of a session, asked on the terminal while a command waits for its hosts.

use super::terminal_prompts::TerminalPrompts;
use crate::ssh::{Context, PromptEvent};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Asks on the terminal what the connections want to know.
pub(super) struct Prompter {
    context: Arc<Context>,
    prompts: mpsc::Receiver<PromptEvent>,
    /// Opened with the first question.
    terminal_prompts: Option<TerminalPrompts>,
}

impl Prompter {
    /// What the connections of a session share, and the prompts that they raise.
    pub(super) fn new((context, prompts): (Arc<Context>, mpsc::Receiver<PromptEvent>)) -> Self {
        Self { context, prompts, terminal_prompts: None }
    }

    /// Whether a question stands open now.
    pub(super) fn is_asking(&self) -> bool {
        self.terminal_prompts.as_ref().is_some_and(TerminalPrompts::is_open)
    }

    /// How long questions have stood open so far.
    pub(super) fn waited(&self) -> Duration {
        self.terminal_prompts.as_ref().map(TerminalPrompts::waited).unwrap_or_default()
    }

    async fn step(&mut self) {
        let Some(terminal_prompts) = &mut self.terminal_prompts else {
            let Some(event) = self.prompts.recv().await else { return std::future::pending().await };
            match TerminalPrompts::open() {
                Ok(terminal_prompts) => self.terminal_prompts.insert(terminal_prompts).take(event),
                // There was a terminal at the start; without it nobody answers, and the time limit ends the wait.
                Err(_) => self.decline(&event),
            }
            return;
        };
        tokio::select! {
            Some(event) = self.prompts.recv() => terminal_prompts.take(event),
            (id, answer) = terminal_prompts.answer() => self.context.answer(id, answer),
        }
    }

    fn decline(&self, event: &PromptEvent) {
        if let PromptEvent::Opened(prompt) = event {
            self.context.answer(prompt.id, crate::ssh::Answer::Decline);
        }
    }
}

/// One step of the prompts, or for ever where there are none.
pub(super) async fn step(prompter: Option<&mut Prompter>) {
    match prompter {
        Some(prompter) => prompter.step().await,
        None => std::future::pending().await,
    }
}
