//! The collector: watches all hosts without a screen (`gpufleet collect`).
//!
//! ```text
//! host tasks --HostUpdate--> event loop --> CollectorState (fleet + engine)
//! clock      --tick-------->    |                 |
//! signals    --reload------>    |           each Observer: log, history, subscribers
//! other tasks --StateReader-----'                 (writes to the store, publishes updates)
//! ```
//!
//! [`CollectorState`] owns the fleet and the diagnosis engine, and only `event_loop` changes it. There are two ways to
//! plug in:
//!
//! - An [`Observer`] follows every update and every tick on the event loop. This is the place to write to the store and
//!   to publish updates to subscribers. It must not block.
//! - A [`StateReader`] runs a function on the current state, from any task. This is the place to render metrics and to
//!   answer requests.

pub(super) mod event_loop;
pub(super) mod history;
mod log;
mod state;

pub use state::{Applied, CollectorState, EndFuture, Observer, StateReader};
