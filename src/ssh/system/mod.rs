//! The `ssh` program, for what the built-in client cannot do: jump hosts, proxies, a running master, certificates.
//!
//! It never asks and never touches the terminal: `BatchMode` keeps it from asking, and an askpass that always declines
//! keeps the programs it starts itself (a jump host's ssh) from asking.

pub(super) mod child;
mod open;
mod verdict;

pub(super) use open::open;
