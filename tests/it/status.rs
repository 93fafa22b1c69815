//! The non-interactive commands, whole.
