//! Everything about OpenSSH: reaching a host and running one command there.
//!
//! It knows the host's configuration and nothing of the fleet: phases and errors are its own plain types, which
//! `collect` translates.

pub mod prompt;
pub mod transport;
