//! The real controller in a real terminal, against real sshds.
