//! The transports against a real OpenSSH server.
