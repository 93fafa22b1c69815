//! Tells somebody who looks elsewhere: the terminal's bell, a desktop notification, a hook.

mod hook;
mod notifier;
mod queue;

pub(super) use notifier::Notifier;
