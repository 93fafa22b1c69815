//! The program's state between events: pure, events in, effects out.

pub mod effect;
pub mod event;

pub use effect::Effect;
pub use event::Event;
