//! The filter language of the combined list.
//!
//! Words are looked for in host, user and command; `user:bob host:hgx gpu:3 mem>10G sm<5 idle>30m state:D stuck`,
//! `/regex/`, `!not`; a space means and, `|` means or.

mod input;
mod parse;
mod term;

pub use input::{FilterInput, RowFacts};
pub use parse::{FilterError, SYNTAX};
pub use term::Filter;

#[cfg(test)]
mod tests;
