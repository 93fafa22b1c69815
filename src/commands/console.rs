//! The terminal and who has it: the screen, or a shell that somebody opened from it.

use super::background::Asked;
use super::keyboard::{self, Keyboard};
use super::suspension::Suspension;
use super::terminal::Screen;
use super::visit::Visit;
use crate::hosts::HostConfig;
use crossterm::event::Event as TerminalEvent;
use std::io;

/// The terminal.
pub(super) struct Console {
    /// What draws on it while it is ours.
    pub(super) screen: Screen,
    /// What reads it while it is ours.
    keyboard: Option<Keyboard>,
    visit: Option<Visit>,
    /// A bell or notification that came while somebody else had the terminal.
    held: Option<String>,
}

/// What the terminal tells.
pub(super) enum Heard {
    /// A key, a click, a size. An error, or nothing, when the terminal is gone.
    Input(Option<io::Result<TerminalEvent>>),
    /// The shell has ended; what came of it, in words.
    Returned(String),
}

impl Console {
    /// Takes the terminal over; what was typed while it was asked something comes first.
    ///
    /// # Errors
    /// When there is no terminal.
    pub(super) fn enter(has_mouse: bool, asked: Asked) -> io::Result<Self> {
        let screen = Screen::enter(has_mouse)?;
        let keyboard = Some(Keyboard::after(asked)?);
        Ok(Self { screen, keyboard, visit: None, held: None })
    }

    /// Whether a shell has the terminal.
    pub(super) fn is_lent(&self) -> bool {
        self.visit.is_some()
    }

    /// The next thing it tells. May be dropped and called again.
    pub(super) async fn next(&mut self) -> Heard {
        match (&mut self.visit, &mut self.keyboard) {
            (Some(visit), _) => Heard::Returned(visit.ended().await),
            (None, Some(keyboard)) => Heard::Input(keyboard.next().await),
            (None, None) => std::future::pending().await,
        }
    }

    /// Lends the terminal to a shell on a host. Where that cannot be started it is ours again, and the text says why.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) async fn lend(&mut self, host: &HostConfig) -> io::Result<Option<String>> {
        if let Some(keyboard) = self.keyboard.take() {
            keyboard.stop().await;
        }
        Screen::lend();
        match Visit::start(host) {
            Ok(started) => {
                self.visit = Some(started);
                Ok(None)
            }
            Err(said) => {
                self.screen.take_back()?;
                self.keyboard = Some(Keyboard::start()?);
                Ok(Some(said))
            }
        }
    }

    /// Takes the terminal back after a shell, whose last keys are not ours.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn take_back(&mut self) -> io::Result<()> {
        self.visit = None;
        self.screen.take_back()?;
        keyboard::discard();
        self.keyboard = Some(Keyboard::start()?);
        self.held.take().map_or(Ok(()), |sequence| self.screen.send(&sequence))
    }

    /// Sends a bell or a notification to the terminal; once it is ours again, where it is lent.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn ring(&mut self, sequence: String) -> io::Result<()> {
        if self.is_lent() {
            self.held = Some(sequence);
            return Ok(());
        }
        self.screen.send(&sequence)
    }

    /// Gives the terminal back, stops the program, and takes the terminal over again once it continues. There is nothing
    /// to give back while it is lent.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn suspend(&mut self, suspension: &mut Suspension) -> io::Result<()> {
        if self.is_lent() {
            return suspension.stop();
        }
        Screen::lend();
        suspension.stop()?;
        self.screen.take_back()
    }

    /// Repairs the screen after a stop that nobody could prepare for.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn continued(&mut self) -> io::Result<()> {
        if self.is_lent() { Ok(()) } else { self.screen.reclaim() }
    }
}
