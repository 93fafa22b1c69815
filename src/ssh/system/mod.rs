//! The `ssh` program, for what the built-in client cannot do: a running master, PKCS#11, GSSAPI and the like.
//!
//! It never touches the terminal: what it and the programs that it starts want to know comes to us as an askpass, and
//! goes through the one queue of prompts. Without a person, `BatchMode` keeps it from asking at all.

mod askpass;
pub(super) mod child;
mod helper;
mod open;
mod verdict;

pub(super) use askpass::{Askpass, GivenUp, Licence};
pub use helper::play;
pub(super) use helper::{in_own_session, licence, set_askpass};
pub(super) use open::{arguments, open};
